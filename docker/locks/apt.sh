# Runs in a container of the base (docker/relock apt): what must be installed, at which version, with which hash.
set -euo pipefail
export LC_ALL=C DEBIAN_FRONTEND=noninteractive
python=$1
# g++-12 is what compiles at run time (Triton, FlashInfer, torch.compile): it brings gcc-12 and the C library's headers.
# Both are named, because gcc-12 alone is the classic half-installed compiler.
wanted=(ca-certificates gcc-12 g++-12 "libpython$python-dev" "python$python" "python$python-dev" "python$python-venv" tini)
apt-get update -qq
. /etc/os-release
printf '# %s on %s; archive of %s\n' "${wanted[*]}" "$PRETTY_NAME" "$(date -u +%Y%m%dT%H%M%SZ)"
apt-get install --simulate --no-install-recommends "${wanted[@]}" | awk '$1 == "Inst" { print $2 }' | sort |
    while read -r package; do
        # the candidate, with the architecture and hash that the signed index gives
        apt-cache show --no-all-versions "$package" | awk '
            $1 == "Package:" { name = $2 }
            $1 == "Version:" { version = $2 }
            $1 == "Architecture:" { arch = $2 }
            $1 == "SHA256:" { hash = $2 }
            END { print name "=" version, arch, hash }'
    done
