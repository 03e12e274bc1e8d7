# `uv run just` lists these; `just` alone does where it is installed.

[private]
default:
    @just --list --justfile {{ quote(justfile()) }}

# Install the light environment and the commit hooks.
setup:
    uv sync
    uv run pre-commit install

# Static checks: format, lint, types, imports, lock; or only those that are named.
check *names:
    uv run tools/check.py {{ names }}

# Put imports and layout in order.
fix:
    uv run ruff check --fix .
    uv run ruff format .

# Run the tests of one member (`just test core`), or of all that are installed.
test member="" *arguments:
    uv run pytest {{ if member == "" { "" } else if path_exists("packages/" + member) == "true" { "packages/" + member } else { "packages/evalution-" + member } }} {{ arguments }}

# Run one engine's conformance tests in the environment at hand (`just conform reference`).
conform engine *arguments:
    uv run --no-sync pytest packages/evalution-{{ engine }}/tests/test_conformance.py {{ arguments }}

# Write the folder of a new engine (`just new-engine acme`).
new-engine name:
    uv run python -m evalution_enginekit.new {{ name }} --into packages

# Run one benchmark of tools/bench (`just bench import_cost`).
bench name *arguments:
    uv run tools/bench/{{ name }}.py {{ arguments }}

# Build the documents as a site, in build/site.
site:
    UV_PROJECT_ENVIRONMENT=.venv-docs uv run --only-group docs tools/docs_site.py

# Everything that a CPU machine can run, from a bare Python.
ci:
    .ci/run
