#!/usr/bin/env bash
# Installs what `just dist` made on clean roots and runs it there: the archive's binary, the Debian package (in an empty root by
# `dpkg --root`), and a container image from the static binary where buildah is installed. Needs root for chroot.
# usage: run.sh DIR      DIR is what deploy/dist.sh was given
set -euo pipefail
[ $# -eq 1 ] && [ -d "$1" ] || { echo "usage: run.sh DIR   (made by deploy/dist.sh)" >&2; exit 2; }
dist=$(cd "$1" && pwd) here=$(cd "$(dirname "$0")" && pwd)
[ "$(id -u)" = 0 ] || { echo "run.sh: chroot needs root" >&2; exit 2; }
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
ok() { printf '  ok    %s\n' "$*"; }
fail() { printf '  FAIL  %s\n' "$*" >&2; exit 1; }

(cd "$dist" && sha256sum --quiet -c SHA256SUMS) || fail "checksums"
ok "checksums"

# The package, on a root in which there is nothing else.
root=$work/root
mkdir -p "$root"/var/lib/dpkg/{info,updates} "$root/tmp" "$root/proc" "$root/dev"
: > "$root/var/lib/dpkg/status"; : > "$root/dev/null"; chmod 666 "$root/dev/null"
dpkg --root="$root" --force-script-chrootless --install "$dist"/respool_*.deb >/dev/null
dpkg --root="$root" --verify respool || fail "files differ from the package's checksums"
chroot "$root" /usr/bin/respool --version | tee "$work/version" | head -1 | grep -q '^respool ' || fail "the installed program does not run"
grep -q '^commit: .' "$work/version" && grep -q '^features: .*static' "$work/version" || fail "$(cat "$work/version")"
ok "Debian package installed on an empty root: $(tr '\n' ' ' < "$work/version")"
chroot "$root" /usr/bin/respool demo > "$work/demo" || fail "the demo fails on the empty root"
grep -q 'the meeting is at nine' "$work/demo" || fail "the demo's last scene is missing"
ok "the demo runs there, without a C library, a shell or certificates"
for file in usr/lib/systemd/user/respool.service usr/share/man/man1/respool.1.gz usr/share/man/man1/respool-serve.1.gz \
    usr/share/bash-completion/completions/respool usr/share/doc/respool/copyright; do
    [ -s "$root/$file" ] || fail "$file is not in the package"
done
grep -q '^ExecStart=/usr/bin/respool serve$' "$root/usr/lib/systemd/user/respool.service" || fail "the unit starts another program"
ok "unit, man pages and completions are in the package"
if command -v systemd-analyze >/dev/null; then
    install -D "$root/usr/bin/respool" "$work/verify/respool"
    sed "s|/usr/bin/respool|$work/verify/respool|" "$root/usr/lib/systemd/user/respool.service" > "$work/verify/respool.service"
    SYSTEMD_LOG_LEVEL=warning systemd-analyze verify --user --man=no "$work/verify/respool.service" 2> "$work/verify/said" || true
    ! grep -F respool.service "$work/verify/said" || fail "systemd-analyze verify"
    ok "systemd-analyze has nothing to say about the unit"
fi
if command -v lintian >/dev/null; then
    # A Rust program is one statically linked file, and the package was not made from a Debian source.
    lintian --fail-on error --suppress-tags statically-linked-binary,no-changelog,initial-upload-closes-no-bugs \
        "$dist"/respool_*.deb > "$work/lintian" 2>&1 || fail "lintian: $(cat "$work/lintian")"
    ok "lintian finds no error"
fi
dpkg --root="$root" --force-script-chrootless --purge respool >/dev/null
[ ! -e "$root/usr/bin/respool" ] || fail "the program is still there after the removal"
ok "removed without a trace"

# The archive.
tar -C "$work" -xzf "$dist"/respool-*.tar.gz
"$work"/respool-*/respool --version | head -1 | grep -q '^respool ' || fail "the archive's program does not run"
ok "archive"

if command -v buildah >/dev/null; then
    "$here/image.sh" "$work"/respool-*/respool "$work"
    ok "container image, built and started"
else
    echo "  --    buildah is not installed: the image was not tried"
fi
