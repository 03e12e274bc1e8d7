# shellcheck shell=bash
# The environments that .ci/run builds beside the light one; sourced from there, at the root.
# Each is a folder .venv-NAME, made anew; packages come from uv's cache where it holds them.

light=(evalution evalution-conformance evalution-core evalution-enginekit evalution-reference evalution-training)
torch=2.13.0

# Prints the first Python that runs and is new enough; `python3.11` may be a shim that fails. 3.11
# comes first because folders of CPU wheels of torch hold builds for it.
working_python() {
    local candidate
    for candidate in ${PYTHON:-} python3.11 python3 python; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            command -v "$candidate"
            return
        fi
    done
    echo "no Python 3.11 or newer on PATH" >&2
    return 1
}

# On Linux the index's build of torch brings 3 GB of CUDA libraries, so a CPU build is taken: from a
# folder of wheels if one is named, else from PyTorch's own index.
install_torch() {
    local install=(uv pip install --quiet --no-deps --python "$1")
    if [ -n "${PIP_FIND_LINKS:-}" ]; then
        local links=() folder
        for folder in $PIP_FIND_LINKS; do links+=(--find-links "$folder"); done
        "${install[@]}" "${links[@]}" "torch==$torch+cpu"
    elif [ "$(uname -s)" = Linux ]; then
        "${install[@]}" --torch-backend cpu "torch==$torch"
    else
        "${install[@]}" "torch==$torch"
    fi
}

# An environment of tools/envs: the hashed requirements and the light members; further members are
# named after the environment.
build_hashed() {
    local name=$1 members=("${light[@]}" "${@:2}")
    uv venv --quiet --clear --python "$(working_python)" ".venv-$name"
    # Without dependencies: the file is complete but for torch. Without the root's pyproject.toml: its
    # constraints are for the lock.
    local install=(uv pip install --no-config --quiet --no-deps --python ".venv-$name")
    "${install[@]}" --require-hashes -r "tools/envs/$name.txt"
    "${install[@]}" "${members[@]/#/--editable=packages/}"
}

# The same with torch.
build_wide() {
    build_hashed "$@"
    install_torch ".venv-$1"
}

# llama-cpp-python comes as source alone: six minutes of compiling on two cores, once, since uv keeps
# the wheel. It is made for any x86-64 machine with AVX2 rather than for this very one, so that uv's
# cache may be restored elsewhere.
build_gguf() {
    install_compiler
    CMAKE_ARGS=-DGGML_NATIVE=OFF build_hashed gguf evalution-llama-cpp evalution-tinygrad evalution-openai
}

# SGLang starts two processes for each engine, which import thousands of modules each: compiled once,
# a start takes half the processor time.
build_sglang() {
    UV_COMPILE_BYTECODE=1 build_wide sglang evalution-sglang
}

# For packages that come as source, from the system's packages where there is none.
install_compiler() {
    if command -v c++; then return; fi
    install_system_packages g++
    command -v c++
}

install_system_packages() {
    local root=()
    [ "$(id -u)" = 0 ] || root=(sudo)
    "${root[@]}" apt-get -qq update
    "${root[@]}" apt-get -qq install --yes --no-install-recommends "$@" >/dev/null
}

# A browser for the pages that the runner writes, from the system's packages where there is none.
install_browser() {
    local candidate
    for candidate in chromium chromium-browser google-chrome chrome; do
        if command -v "$candidate"; then return; fi
    done
    install_system_packages chromium
    command -v chromium
}

# The light members, every dependency that they name at the lowest version that they admit. The
# extras `hf` and `datasets` stay out: their packages would raise the floors of the others.
build_lowest() {
    local members=("${light[@]/#/--editable=packages/}")
    members=("${members[@]/%enginekit/enginekit[tokenizers]}")
    members=("${members[@]/%\/evalution//evalution[parquet]}")
    uv venv --quiet --clear --python "$(working_python)" .venv-lowest
    uv pip install --quiet --python .venv-lowest --resolution lowest-direct "${members[@]}" \
        "hypothesis>=6.120" "jsonschema>=4.23"
}

# Runs pytest in .venv-NAME, tests marked `wide` included. EVALUTION_REQUIRE names what must be there,
# so that no skip hides a package that is missing.
test_in() {
    local name=$1
    shift
    ".venv-$name/bin/pytest" -m "not gpu and not hub" "$@"
}
