"""Hold the arrows between the members with import-linter.

`uv run tools/lint_imports.py` finds the members in `packages/`. A member that is not named below
may import core and the kit, so a new engine needs no entry here.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from importlinter.cli import lint_imports

CORE, KIT, REFERENCE = "evalution_core", "evalution_enginekit", "evalution_reference"
RUNNER, TRANSFORMERS = "evalution", "evalution_transformers"

ENGINE_ARROWS = (CORE, KIT)
ARROWS = {
    CORE: (),
    KIT: (CORE,),
    RUNNER: (CORE,),
    "evalution_conformance": (CORE, KIT, REFERENCE),
    "evalution_gptqmodel": (CORE, KIT, TRANSFORMERS),
    "evalution_guidellm": (CORE, KIT, RUNNER),
    "evalution_inspect": (CORE, KIT, RUNNER),
    "evalution_lm_eval": (CORE, KIT, RUNNER),
    "evalution_openvino": (CORE, KIT, TRANSFORMERS),
    "evalution_ray": (CORE, RUNNER),
    "evalution_training": (CORE, RUNNER),
}

# The runner's modules that other members may import; the table "Modules for bridges" in its README
# says what each is for.
RUNNER_MODULES = (
    "evalution",
    "evalution.cli.errors",
    "evalution.engines",
    "evalution.error_boundary",
    "evalution.fidelity.divergence",
    "evalution.fidelity.lockstep",
    "evalution.fidelity.measurement",
    "evalution.fidelity.requests",
    "evalution.fidelity.result",
    "evalution.fidelity.sides",
    "evalution.redaction",
    "evalution.replicas",
    "evalution.results",
    "evalution.runs.preflight",
    "evalution.runs.reader",
    "evalution.samples",
    "evalution.samples_file",
    "evalution.scoring.intervals",
    "evalution.scoring.metrics",
    "evalution.suites",
    "evalution.suites.suite",
    "evalution.table",
    "evalution.user_input",
    "evalution.workers",
    "evalution.yaml_spec.yaml_file",
)

# What a member must not import from outside, whether at module level or inside a function. The kit
# gets transformers for its extra `hf` through `import_runtime`.
RUNTIMES = ("numpy", "tokenizers", "torch", "transformers")
FOREIGN = {
    CORE: (*RUNTIMES, "httpx", "jinja2", "rich", "typer", "yaml"),
    KIT: ("numpy", "torch", "transformers"),
    RUNNER: RUNTIMES,
}
# Decision 0012: modules of the kit that are only for engines that bring NumPy; the runner has an
# extra of its own.
OPT_IN = {
    KIT: (
        "evalution_enginekit.distributions -> numpy",
        "evalution_enginekit.mock -> numpy",
        "evalution_enginekit.sampling -> numpy",
        "evalution_enginekit.serving_rows -> numpy",
    ),
    RUNNER: ("evalution.fidelity.* -> numpy",),
}


def source_folders(root: Path) -> dict[str, Path]:
    """Return each member's import name and the folder that holds it, in order of name."""
    found = root.glob("packages/*/src/*/__init__.py")
    return {file.parent.name: file.parents[1] for file in sorted(found)}


def find_private_modules(package: Path, documented: tuple[str, ...]) -> list[str]:
    """Return the modules of a package that aren't documented for others, in order of name."""
    found: list[str] = []
    for file in sorted(package.rglob("*.py")):
        parts = file.relative_to(package.parent).with_suffix("").parts
        name = ".".join(parts[:-1] if parts[-1] == "__init__" else parts)
        if name not in documented and file.name != "__init__.py":
            found.append(name)
    return found


def configuration(members: list[str], runner: Path | None = None) -> str:
    """Return the import-linter configuration that holds `members` to their arrows.

    With `runner`, the folder of its package, others may import its documented modules alone.
    """
    lines = [
        "[importlinter]",
        "include_external_packages = True",
        *_listed("root_packages", members),
    ]
    for member in members:
        allowed = [name for name in ARROWS.get(member, ENGINE_ARROWS) if name in members]
        forbidden = [name for name in members if name != member and name not in allowed]
        lines += [
            f"[importlinter:contract:{member}]",
            f"name = {member} imports {', '.join(allowed) or 'none of ours'}",
            "type = forbidden",
            f"source_modules = {member}",
            *_listed("forbidden_modules", [*forbidden, *FOREIGN.get(member, ())]),
            *_listed("ignore_imports", [*OPT_IN.get(member, ())]),
            "unmatched_ignore_imports_alerting = none",
        ]
    if runner is not None:
        private = find_private_modules(runner, RUNNER_MODULES)
        for member in members:
            if RUNNER in ARROWS.get(member, ()):
                lines += [
                    f"[importlinter:contract:{member}_modules]",
                    f"name = {member} imports the runner's documented modules",
                    "type = forbidden",
                    f"source_modules = {member}",
                    *_listed("forbidden_modules", private),
                    "allow_indirect_imports = True",
                ]
    return "\n".join(lines) + "\n"


def _listed(key: str, values: list[str]) -> list[str]:
    return [f"{key} =", *(f"    {value}" for value in values)]


def main(arguments: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--root", type=Path, default=Path(__file__).parents[1])
    root: Path = parser.parse_args(arguments).root
    folders = source_folders(root)
    # The analysis is static: source folders are enough, and members need no installation.
    sys.path[:0] = [str(folder.resolve()) for folder in folders.values()]
    with tempfile.TemporaryDirectory() as temporary:
        config = Path(temporary) / "importlinter.ini"
        runner = folders[RUNNER] / RUNNER if RUNNER in folders else None
        config.write_text(configuration(list(folders), runner), encoding="utf-8")
        return lint_imports(config_filename=str(config), no_cache=True, no_logo=True)


if __name__ == "__main__":
    sys.exit(main())
