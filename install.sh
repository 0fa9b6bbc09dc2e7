#!/bin/sh
# Installs vllm-doctor for the user who runs it; ./install.sh --help says how.
#
# What it makes, and nothing else:
#   ROOT/envs/VERSION-STAMP/   a Python environment of its own   (ROOT: ~/.local/share/vllm-env-doctor)
#   ROOT/current               a link to the environment in use, switched only after the new one works
#   ROOT/manifest              everything made here, written before it is made; --uninstall reads it
#   BIN/vllm-doctor            a link into ROOT/current             (BIN: ~/.local/bin)
# Everything is in functions and main is the last line, so that half a file does nothing.
set -eu

MARK='# added by the installer of vllm-env-doctor'
NEED_KIB=200000 # the environment takes about 75 MB, building it as much again

usage() {
    cat <<'TEXT'
usage: ./install.sh [options]            install vllm-doctor for this user, or update it
       ./install.sh --test [-- ARGS]     make a development environment in .venv-dev and run the tests
       ./install.sh --uninstall          remove what the installer made

  --prefix DIR    use DIR/share/vllm-env-doctor and DIR/bin (default: ~/.local)
  --bin-dir DIR   put the command `vllm-doctor` into DIR
  --python EXE    build with this Python (3.10 or newer)
  --modify-path   add the command's folder to PATH in your shell's start file (one marked line)
  --no-check      do not run `vllm-doctor check` afterwards
  --help          this text

exit status: 0 installed (whatever check says), 1 not installed, 2 wrong option; --test: that of pytest
TEXT
}

say() { printf '%s\n' "$*"; }
note() { printf 'install.sh: %s\n' "$*" >&2; }
fail() {
    note "$*"
    exit 1
}

# ---------------------------------------------------------------- options and places

main() {
    mode='install' check=1 modify_path=0 prefix='' bin='' python='' tty=0 child='' new='' tmp=''
    while [ $# -gt 0 ]; do
        case $1 in
            --prefix | --bin-dir | --python)
                [ -n "${2:-}" ] || misuse "$1 needs a value"
                case $1 in
                    --prefix) prefix=$2 ;;
                    --bin-dir) bin=$2 ;;
                    --python) python=$2 ;;
                esac
                shift
                ;;
            --test) mode='test' ;;
            --uninstall) mode='uninstall' ;;
            --modify-path) modify_path=1 ;;
            --no-check) check=0 ;;
            -h | --help)
                usage
                exit 0
                ;;
            --)
                shift
                break
                ;;
            *) misuse "unknown option $1" ;;
        esac
        shift
    done
    [ $# -eq 0 ] || [ "$mode" = test ] || misuse "arguments after -- go with --test only"
    [ ! -t 1 ] || [ "${TERM:-dumb}" = dumb ] || tty=1
    # these would send the packages to another place than the environment; all other settings are left alone
    unset PYTHONHOME PYTHONPATH PIP_TARGET PIP_PREFIX PIP_ROOT
    PIP_USER=0
    export PIP_USER
    trap 'cleanup' EXIT
    trap 'interrupted 130' INT
    trap 'interrupted 143' TERM
    trap 'interrupted 129' HUP
    if [ "$mode" = uninstall ]; then
        places
        uninstall
        return
    fi
    find_source
    find_python
    if [ "$mode" = test ]; then
        run_tests "$@"
    else
        places
        install
    fi
}

misuse() {
    note "$1 (see ./install.sh --help)"
    exit 2
}

# ROOT and BIN as absolute paths; a line break in one would break the manifest
places() {
    if [ -n "$prefix" ]; then
        prefix=$(absolute "$prefix")
        root=$prefix/share/vllm-env-doctor
        bin=${bin:-$prefix/bin}
    else
        [ -n "${HOME:-}" ] || fail "HOME is not set: set it, or choose a place with --prefix DIR"
        case ${XDG_DATA_HOME:-} in
            /*) root=$XDG_DATA_HOME/vllm-env-doctor ;;
            *) root=$(absolute "$HOME")/.local/share/vllm-env-doctor ;; # a relative one is invalid by its own specification
        esac
        bin=${bin:-$HOME/.local/bin}
    fi
    bin=$(absolute "$bin")
    case $root$bin in
        *'
'*) fail "a path with a line break cannot be used: $(printf %s "$root" | head -n 1)..." ;;
    esac
    plain_path "$root"
    link=$bin/vllm-doctor
    target=$root/current/bin/vllm-doctor
    manifest=$root/manifest
}

# setuptools expands $ in its own paths, and pip's launchers do not quote the others
plain_path() {
    case $1 in
        *[\$\"\`\\]*) fail "Python packages do not work below a path with one of \$ \" \` \\ in it ($1): choose another place" ;;
    esac
}

absolute() {
    case $1 in
        /) printf '/\n' ;;
        /*) printf '%s\n' "${1%/}" ;;
        *) printf '%s/%s\n' "$PWD" "${1%/}" ;;
    esac
}

# The checkout this script lies in, also when it is called through a link
find_source() {
    self=$0
    case $self in
        */*) ;;
        *) [ -f "$self" ] || self=$(command -v -- "$self" || printf '%s' "$self") ;;
    esac
    while [ -L "$self" ]; do
        next=$(readlink "$self")
        case $next in
            /*) self=$next ;;
            *) self=$(dirname "$self")/$next ;;
        esac
    done
    src=$(CDPATH='' cd -- "$(dirname -- "$self")" 2>/dev/null && pwd -P) || src=''
    if [ ! -f "$src/pyproject.toml" ] || [ ! -f "$src/doctor/cli.py" ]; then
        fail "the sources are not beside this script (${src:-$0}): run it inside a checkout, as ./install.sh"
    fi
    version=$(sed -n 's/^__version__ = "\(.*\)"$/\1/p' "$src/doctor/__init__.py")
}

# ---------------------------------------------------------------- Python

# Sets $tools to what can build an environment, in the order to try: "pip uv", "pip" or "uv".
# pip comes first: it is what the machine's own index settings (pip.conf) are written for.
find_python() {
    exe='' exe_version='' tools='' old='' bare=''
    for candidate in python3 python3.14 python3.13 python3.12 python3.11 python3.10; do
        candidate=${python:-"$candidate"}
        found=$(describe "$candidate") || continue
        case $found in
            old*) old=${old:-"$candidate is ${found#old }"} ;;
            bare*) bare=${bare:-"${found#bare }"} ;;
            good*)
                exe=${found#good * } exe_version=${found#good } exe_version=${exe_version%% *}
                tools=pip
                break
                ;;
        esac
    done
    if command -v uv >/dev/null 2>&1; then tools="${tools:+$tools }uv"; fi
    [ -z "$tools" ] || {
        if [ -z "$exe" ] && [ -n "$bare" ]; then exe=${bare#* } exe_version=${bare%% *}; fi
        return 0
    }
    if [ -n "$bare" ]; then
        exe_version=${bare%% *}
        if command -v apt-get >/dev/null 2>&1; then
            fail "${bare#* } has no venv module: sudo apt-get install python$exe_version-venv, or install uv; then run this again"
        fi
        fail "${bare#* } has no venv module: install the venv and ensurepip of Python $exe_version, or install uv; then run this again"
    fi
    [ -z "$old" ] || fail "$old, vllm-doctor needs 3.10 or newer: install a newer Python, or uv, which brings one; then run this again"
    [ -z "$python" ] || fail "$python is not a working Python: give one of version 3.10 or newer, or leave --python out"
    if command -v apt-get >/dev/null 2>&1; then
        fail "no python3 on PATH: sudo apt-get install python3 python3-venv, or install uv; then run this again"
    fi
    fail "no python3 on PATH: install Python 3.10 or newer, or uv, which brings one; then run this again"
}

# "good 3.11 /path", "bare 3.11 /path" (no venv), "old 3.9"; fails when it is no working Python
describe() {
    command -v "$1" >/dev/null 2>&1 || return 1
    "$1" - 2>/dev/null <<'CODE'
import sys
version = "%d.%d" % sys.version_info[:2]
if sys.version_info < (3, 10):
    print("old " + version)
else:
    try:
        import ensurepip, venv
        kind = "good"
    except ImportError:
        kind = "bare"
    print("%s %s %s" % (kind, version, sys.executable))
CODE
}

# ---------------------------------------------------------------- running things

# step TITLE COMMAND...: the output goes to $tmp/log; a terminal sees the seconds pass
step() {
    title=$1
    shift
    began=$(date +%s)
    [ "$tty" = 1 ] || say "$title ..."
    "$@" >>"$tmp/log" 2>&1 </dev/null &
    child=$!
    if [ "$tty" = 1 ]; then
        while kill -0 "$child" 2>/dev/null; do
            printf '\r\033[K%s ... %d s' "$title" $(($(date +%s) - began))
            sleep 0.2 2>/dev/null || sleep 1
        done
        printf '\r\033[K'
    fi
    status=0
    wait "$child" || status=$?
    child=''
    took=$(($(date +%s) - began))
    if [ "$tty" = 1 ] && [ "$status" = 0 ]; then say "$title: $took s"; fi
    return "$status"
}

# The line of the log that tells a person most
telling() {
    line=''
    for pattern in 'No space left on device' 'Disk quota exceeded' 'Read-only file system' 'CERTIFICATE_VERIFY_FAILED' \
        'Temporary failure in name resolution\|Name or service not known\|dns error\|failed to lookup address' \
        'Connection refused' 'Network is unreachable' 'ProxyError\|Tunnel connection failed' 'timed out' \
        'No matching distribution found' '^  × No solution found'; do
        line=$(grep -- "$pattern" "$tmp/log" | tail -n 1) || continue
        [ -z "$line" ] || break
    done
    # a build that failed: the last line of what the builder said
    [ -n "$line" ] || line=$(grep -B 1 -F '[end of output]' "$tmp/log" | head -n 1) || :
    [ -n "$line" ] || line=$(grep -v '^[[:space:]]*$' "$tmp/log" | tail -n 1) || line='no output'
    printf '%s' "$line" | sed 's/^[[:space:]]*//; s/^WARNING: Retrying.*broken by ["'\'']*//; s/^\(.\{240\}\).*/\1.../'
}

# What to do about it
advice() {
    case $1 in
        *'No space left'* | *quota*) say "free some room, or choose another place with --prefix DIR" ;;
        *CERTIFICATE_VERIFY_FAILED*) say "name your company's CA file in PIP_CERT (uv: SSL_CERT_FILE)" ;;
        *'No matching distribution'*) # pip says the same when no index answered at all
            say "check the network and HTTPS_PROXY, and that the package index has it (PIP_INDEX_URL)"
            ;;
        *resolution* | *'Name or service'* | *lookup* | *refused* | *unreachable* | *roxy* | *'timed out'* | *'dns error'*)
            say "check the network and HTTPS_PROXY, or name a package index in PIP_INDEX_URL (uv: UV_DEFAULT_INDEX)"
            ;;
        *) say "see the log" ;;
    esac
}

cleanup() {
    status=$?
    [ -z "$child" ] || kill "$child" 2>/dev/null || :
    if [ -n "$new" ]; then # the environment is not in use yet: the earlier one, if any, stays as it is
        rm -rf -- "$new"
        [ -L "$root/current" ] || uninstall >/dev/null 2>&1 || :
    fi
    [ -z "$tmp" ] || rm -rf -- "$tmp"
    exit "$status"
}

interrupted() {
    trap '' INT TERM HUP
    [ "$tty" = 0 ] || printf '\r\033[K'
    note "interrupted; what was installed before is untouched"
    exit "$1"
}

scratch() {
    tmp=$(mktemp -d "${TMPDIR:-/tmp}/vllm-doctor-install.XXXXXX" 2>/dev/null) ||
        fail "cannot make a folder in ${TMPDIR:-/tmp}: free some room there, or set TMPDIR to a writable folder"
    : >"$tmp/log"
}

# ---------------------------------------------------------------- environments

# environment DIR SPEC...: makes DIR and installs into it, with the first tool that manages
environment() {
    dir=$1
    shift
    for tool in $tools; do
        rm -rf -- "$dir"
        if with_"$tool" "$dir" "$@"; then return; fi
        reason=$(telling)
        if [ "$tool" = pip ] && [ "$tools" != pip ]; then note "pip could not: $reason; trying uv"; fi
        printf '\n' >>"$tmp/log"
    done
    log=$tmp/log
    rm -rf -- "$tmp/src"
    tmp='' # the log stays
    fail "$tool could not make the environment ($dir): $reason; $(advice "$reason") (log: $log)"
}

with_pip() {
    step "creating an environment (Python $exe_version)" "$exe" -m venv "$1" || return 1
    env_python=$1/bin/python
    shift
    step "installing the packages" "$env_python" -m pip install --no-input "$@"
}

with_uv() {
    # without a suitable Python here uv may bring one; --seed: pip inside, as in any environment
    step "creating an environment (uv, Python ${exe_version:-of its own})" \
        uv venv --no-project --seed --python "${exe:->=3.10}" "$1" || return 1
    env_python=$1/bin/python
    shift
    step "installing the packages" uv pip install --compile-bytecode --python "$env_python" "$@"
}

# A checksum of all that the environment is made from, so that a second run can tell "nothing new"
fingerprint() {
    (CDPATH='' cd -- "$src" && {
        find doctor docker -type f ! -name '*.pyc' ! -name '*.whl' -exec cksum {} + | LC_ALL=C sort -k 3
        cksum pyproject.toml
    }) | cksum | tr ' ' '-'
}

# ---------------------------------------------------------------- install

install() {
    if [ "$(id -u)" = 0 ]; then
        if [ -n "${SUDO_USER:-}" ] && [ "$SUDO_USER" != root ]; then
            note "running under sudo: this installs for root, not for $SUDO_USER; run it without sudo to have it yourself"
        else
            note "running as root: this installs for root"
        fi
    fi
    own_link_only
    print=$(fingerprint)
    if [ "$(cat "$root/current/source.cksum" 2>/dev/null)" = "$print" ] && works "$target" && [ -L "$link" ]; then
        say "vllm-doctor $version is already installed, nothing to do ($link)"
    else
        build
    fi
    path_hints
    [ "$check" = 0 ] || show_check
}

works() { "$1" --version >/dev/null 2>&1 </dev/null; }

# Never writes over a file of somebody else
own_link_only() {
    [ -e "$link" ] || [ -L "$link" ] || return 0
    if [ -L "$link" ]; then
        [ "$(readlink "$link")" != "$target" ] || return 0
        fail "$link is a link to $(readlink "$link"), not ours: move it away, or choose a folder with --bin-dir DIR"
    fi
    fail "$link exists and is not ours: move it away, or choose a folder with --bin-dir DIR"
}

build() {
    enough_room
    scratch
    make_dir "$root"
    lock
    make_dir "$root/envs"
    make_dir "$bin"
    forget_leftovers
    new=$root/envs/$version-$(date +%Y%m%d%H%M%S)-$$
    record "env $new"
    # a copy, so that the build leaves nothing in the checkout and takes nothing stale from it
    mkdir "$tmp/src"
    cp -R "$src/doctor" "$src/pyproject.toml" "$src/README.md" "$src/LICENSE" "$tmp/src/"
    mkdir "$tmp/src/docker"
    for part in "$src"/docker/*; do
        case ${part##*/} in
            wheels) ;; # may hold gigabytes, which only a build of the image wants
            *) cp -R "$part" "$tmp/src/docker/" ;;
        esac
    done
    find "$tmp/src" -name __pycache__ -prune -exec rm -rf {} +
    environment "$new" "$tmp/src"
    works "$new/bin/vllm-doctor" || fail "the new environment does not start ($new): $("$new/bin/vllm-doctor" --version 2>&1 </dev/null | tail -n 1)"
    printf '%s\n' "$print" >"$new/source.cksum"
    record "link $root/current"
    switch "$new" "$root/current"
    new='' # from here on it is the one in use
    record "link $link"
    [ -L "$link" ] || ln -s "$target" "$link" || fail "cannot write $link: choose a writable folder with --bin-dir DIR"
    forget_leftovers
    say "vllm-doctor $version is installed: $link"
}

enough_room() {
    place=$root
    while [ ! -d "$place" ]; do place=$(dirname "$place"); done
    free=$(df -Pk "$place" 2>/dev/null | awk 'NR == 2 { print $4 }') || free=''
    case $free in
        '' | *[!0-9]*) ;;
        *) [ "$free" -ge "$NEED_KIB" ] ||
            fail "only $((free / 1024)) MiB free under $place, $((NEED_KIB / 1024)) needed: free some, or choose another place with --prefix DIR" ;;
    esac
}

# make_dir DIR: with its parents; each that did not exist goes into the manifest
make_dir() {
    [ ! -d "$1" ] || {
        [ -w "$1" ] || fail "$1 is not writable: choose another place with --prefix DIR"
        return 0
    }
    missing='' place=$1
    while [ ! -d "$place" ]; do
        missing="dir $place
$missing"
        place=$(dirname "$place")
    done
    why=$(mkdir -p -- "$1" 2>&1) || fail "cannot make $1 (${why##*: }): choose a writable place with --prefix DIR"
    printf '%s' "$missing" | while IFS= read -r entry; do record "$entry"; done
}

record() { grep -qxF -- "$1" "$manifest" 2>/dev/null || printf '%s\n' "$1" >>"$manifest" || fail "cannot write $manifest"; }

# One installer at a time; the lock is on the folder itself and ends with this process
lock() {
    command -v flock >/dev/null 2>&1 || return 0
    exec 9<"$root"
    flock -n 9 || fail "another install.sh is at work in $root: wait for it to end"
}

# switch NEW LINK: rename(2) replaces the link in one step; mv would move into the folder behind it
switch() {
    ln -s "$1" "$2.$$"
    "$1/bin/python" -c 'import os, sys; os.replace(sys.argv[1], sys.argv[2])' "$2.$$" "$2" ||
        fail "cannot switch $2 to $1"
}

# Environments of the manifest that are not in use: the one before, or a rest of a killed installer
forget_leftovers() {
    in_use=$(readlink "$root/current" 2>/dev/null) || in_use=''
    [ -f "$manifest" ] || return 0
    while IFS= read -r entry; do
        case $entry in
            "env $root/envs/"*) [ "${entry#env }" = "$in_use" ] || rm -rf -- "${entry#env }" ;;
        esac
    done <"$manifest"
    while IFS= read -r entry; do
        case $entry in
            "env "*) [ ! -d "${entry#env }" ] || printf '%s\n' "$entry" ;;
            *) printf '%s\n' "$entry" ;;
        esac
    done <"$manifest" >"$manifest.new"
    mv -f -- "$manifest.new" "$manifest"
}

# ---------------------------------------------------------------- PATH

path_hints() {
    first=$(first_on_path)
    if [ -n "$first" ] && [ "$(readlink "$first" 2>/dev/null)" != "$target" ]; then
        note "another vllm-doctor comes first on PATH: $first; put $bin before it, or call $link"
    fi
    case :${PATH:-}: in
        *":$bin:"*) return 0 ;;
    esac
    if [ "$modify_path" = 1 ]; then
        add_to_path
    else
        say "$bin is not on PATH; for this shell: export PATH=$(quoted "$bin"):\"\$PATH\" (for good: ./install.sh --modify-path)"
    fi
}

first_on_path() {
    (
        IFS=:
        set -f
        for place in ${PATH:-}; do
            if [ -f "$place/vllm-doctor" ] && [ -x "$place/vllm-doctor" ]; then
                printf '%s\n' "$place/vllm-doctor"
                break
            fi
        done
    )
}

quoted() { printf "'%s'" "$(printf '%s' "$1" | sed "s/'/'\\\\''/g")"; }

add_to_path() {
    line="export PATH=$(quoted "$bin"):\"\$PATH\" $MARK"
    case ${SHELL:-} in
        */zsh) rc=${ZDOTDIR:-$HOME}/.zshrc ;;
        */bash) rc=$HOME/.bashrc ;;
        */fish)
            rc=${XDG_CONFIG_HOME:-$HOME/.config}/fish/config.fish
            line="set -gx PATH $(quoted "$bin") \$PATH $MARK"
            ;;
        *) rc=$HOME/.profile ;;
    esac
    if grep -qxF -- "$line" "$rc" 2>/dev/null; then
        say "$rc already adds $bin to PATH: open a new terminal"
        return
    fi
    case $bin in
        *:*) fail "$bin holds a colon and cannot be on PATH: choose another folder with --bin-dir DIR" ;;
    esac
    kind='rc'
    if [ ! -e "$rc" ]; then
        kind='rc-new'
        make_dir "$(dirname "$rc")"
    elif [ -n "$(tail -c 1 "$rc")" ]; then
        kind='rc-open' # its last line has no end: one is added, and taken away again by --uninstall
    fi
    record "$kind $rc"
    [ "$kind" != rc-open ] || printf '\n' >>"$rc"
    printf '%s\n' "$line" >>"$rc" || fail "cannot write $rc: add this line yourself: $line"
    say "$rc now adds $bin to PATH (one line): open a new terminal"
}

# ---------------------------------------------------------------- check

show_check() {
    say ""
    code=0
    "$target" check </dev/null || code=$?
    case $code in
        0) verdict="ready" ;;
        1) verdict="degraded, or something could not be judged" ;;
        2) verdict="blocked: vLLM will not run as things are" ;;
        *) verdict="the doctor itself failed (exit $code)" ;;
    esac
    say ""
    say "Installed. \`vllm-doctor check\` says: $verdict."
}

# ---------------------------------------------------------------- uninstall

uninstall() {
    [ -f "$manifest" ] || {
        say "nothing to remove: no installation in $root"
        return 0
    }
    lock
    while IFS= read -r entry; do
        item=${entry#* }
        case $entry in
            "env $root/envs/"*) [ -L "$item" ] || rm -rf -- "$item" ;;
            "link $root/current") rm -f -- "$item" ;;
            "link "*)
                if [ "$(readlink "$item" 2>/dev/null)" = "$target" ]; then
                    rm -f -- "$item"
                elif [ -e "$item" ] || [ -L "$item" ]; then
                    note "left alone, it is not ours any more: $item"
                fi
                ;;
            "rc "* | "rc-new "* | "rc-open "*) clean_rc "${entry%% *}" "$item" ;;
        esac
    done <"$manifest"
    dirs=$(sed -n 's/^dir //p' "$manifest" | LC_ALL=C sort -r) # the deepest first
    rm -f -- "$manifest"
    printf '%s\n' "$dirs" | while IFS= read -r item; do
        [ ! -d "$item" ] || rmdir -- "$item" 2>/dev/null || note "left alone, it is not empty: $item"
    done
    say "vllm-doctor is removed ($root)"
    learned=${XDG_STATE_HOME:-${HOME:-}/.local/state}/vllm-doctor
    [ ! -d "$learned" ] || say "kept: what vllm-doctor recorded for you in $learned"
}

# clean_rc KIND FILE: takes the marked line out; every other byte stays as it is
clean_rc() {
    grep -qF -- "$MARK" "$2" 2>/dev/null || return 0
    last=$(tail -n 1 "$2")
    open=$(tail -c 1 "$2") # empty when the file ends with a line end
    rest=$(grep -vF -- "$MARK" "$2" && printf x) || rest=x
    rest=${rest%x}
    case $1:$last in
        rc-open:*"$MARK") open=1 ;; # nothing was added below our line: its last line is open again
    esac
    [ -z "$open" ] || rest=${rest%?}
    if [ "$1" = rc-new ] && [ -z "$rest" ]; then
        rm -f -- "$2"
        return
    fi
    # written in place, since it may be a link into a folder of dotfiles; the copy saves it from a full disk
    if cp -p -- "$2" "$2.$$" 2>/dev/null && printf '%s' "$rest" >"$2"; then
        rm -f -- "$2.$$"
    else
        note "cannot write $2 (a copy may be in $2.$$): remove the line that ends in \"$MARK\" yourself"
    fi
}

# ---------------------------------------------------------------- tests

run_tests() {
    [ -w "$src" ] || fail "$src is not writable, the development environment goes there: copy the checkout to a place of your own"
    plain_path "$src"
    dev=$src/.venv-dev
    print="$(cksum <"$src/pyproject.toml") $src"
    scratch
    cd -- "$src"
    if [ "$(cat "$dev/source.cksum" 2>/dev/null)" != "$print" ] || ! works "$dev/bin/vllm-doctor"; then
        environment "$dev" -e '.[dev]'
        printf '%s\n' "$print" >"$dev/source.cksum"
    fi
    rm -rf -- "$tmp"
    tmp=''
    status=0
    "$dev/bin/python" -m pytest "$@" </dev/null || status=$?
    exit "$status"
}

main "$@"
