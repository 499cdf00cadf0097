# Sourced by serve, test, check and litellm: makes a virtual environment that holds what the caller needs.
#   ensure_venv DIR FILES PIP-ARGUMENT...   DIR and FILES (one word for each) relative to the project root; FILES say what pip
#   will install. Sets VENV to its path. One line and status 1 if it cannot.
#   ensure_tested DIR WHAT   the same for our package and the versions that it was tested with (WHAT is . or .[EXTRA]).
# A stamp is written last; a missing or different stamp means start over, so a broken install never lingers.
ROOT=$(CDPATH='' cd -- "$(dirname -- "$0")/.." && pwd)
cd "$ROOT" || exit 1

fail() { printf '%s: %s\n' "${0##*/}" "$1" >&2; exit 1; }

ensure_venv() {
    VENV=$ROOT/$1
    named=$1 files=$2
    shift 2
    py=${PYTHON:-python3}
    command -v "$py" >/dev/null 2>&1 || fail "no $py found: install Python 3.10 or newer"
    "$py" -c 'import sys; sys.exit(sys.version_info < (3, 10))' ||
        fail "$py is $("$py" -V 2>&1): Python 3.10 or newer is needed (PYTHON=... names another)"
    # The path is part of the stamp: a moved checkout would go on importing the code of the old place. So is the Python,
    # so that PYTHON=... is heeded when there is an environment already.
    stamp=$("$py" - "$ROOT" "$files" <<'END'
import hashlib, sys
contents = b"".join(open(file, "rb").read() for file in sys.argv[2].split())
print(hashlib.sha256(contents).hexdigest(), sys.argv[1], sys.base_prefix, *sys.version_info[:2])
END
    ) ||
        fail "cannot read $files"
    [ "$(cat "$VENV/stamp" 2>/dev/null)" = "$stamp" ] && return 0
    echo "${0##*/}: setting up $named (once; a minute or so)" >&2
    log=$VENV.log
    rm -rf "$VENV"
    if "$py" -m venv "$VENV" >"$log" 2>&1; then
        pip="$VENV/bin/python -m pip"
    else
        # Debian without python3-venv lacks ensurepip: a bare environment and the system's own pip do as well.
        rm -rf "$VENV"
        { "$py" -m venv --without-pip "$VENV" && "$py" -m pip --version; } >>"$log" 2>&1 ||
            { rm -rf "$VENV"; fail "cannot make a virtual environment: install python3-venv (details: ${log##*/})"; }
        pip="$py -m pip --python $VENV/bin/python"
    fi
    # shellcheck disable=SC2086 # $pip is a command of several words
    $pip --disable-pip-version-check install --quiet "$@" >>"$log" 2>&1 ||
        fail "pip could not install the dependencies: $(tail -n 1 "$log") (details: ${log##*/})"
    # As pip does with what it installs: our own modules lie outside the environment, and where Python is told to write no
    # bytecode (PYTHONDONTWRITEBYTECODE) every start would compile all of them anew.
    "$VENV/bin/python" -m compileall -q inference_lab twisted >>"$log" 2>&1 || fail "cannot compile (details: ${log##*/})"
    printf '%s\n' "$stamp" >"$VENV/stamp"
}

ensure_tested() { ensure_venv "$1" "pyproject.toml constraints.txt" --constraint constraints.txt --editable "$2"; }
