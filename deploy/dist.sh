#!/usr/bin/env bash
# Builds what is shipped into DIR (default: target/dist-out): a static binary, an archive, a Debian package, checksums and a
# software bill of materials. `tests/dist/run.sh DIR` installs them.
# usage: dist.sh [DIR]
#   TARGET=x86_64-unknown-linux-musl   PROFILE=dist   what cargo builds; another libc is said, as that binary is not static
#   PROFILE_DATA=FILE                  a profile that `profile.sh` has written: the program is faster by a sixth
#   SBOM=no                            without the bill of materials (which needs `cargo install cargo-cyclonedx`)
# Times are those of the commit and paths are replaced, so that two builds of the same sources can be compared.
set -euo pipefail
cd "$(dirname "$0")/.."
out=${1:-target/dist-out} target=${TARGET:-x86_64-unknown-linux-musl} profile=${PROFILE:-dist}
mkdir -p "$out"; out=$(cd "$out" && pwd)
fail() { echo "dist.sh: $*" >&2; exit 1; }

if [[ $target == *-musl ]]; then
    command -v musl-gcc >/dev/null || fail "there is no musl-gcc for the C parts: install Debian's musl-tools"
    rustup target list --installed 2>/dev/null | grep -qx "$target" || rustup target add "$target"
else
    echo "dist.sh: a binary for $target needs the C library of the system that it runs on" >&2
fi
# A static binary relocates itself. Packed, its relocations take 1.3 MB less; musl reads them since 1.2.4, which Rust has since 1.93.
# Rust's own lld also keeps one of functions with the same code.
link=(-C strip=symbols)
if [[ $target == *-linux-musl ]]; then
    minor=$(rustc --version | sed 's/^rustc 1\.\([0-9]*\)\..*/\1/')
    [ "$minor" -lt 93 ] || link+=(-C link-arg=-Wl,-z,pack-relative-relocs)
    lld=$(rustc --print sysroot)/lib/rustlib/$(rustc -vV | sed -n 's/^host: //p')/bin/gcc-ld
    [ ! -x "$lld/ld.lld" ] || link+=(-C "link-arg=-B$lld" -C link-arg=-fuse-ld=lld -C link-arg=-Wl,--icf=all)
fi
export SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct)}
# For all crates, which `cargo rustc` would not reach.
RUSTFLAGS="${RUSTFLAGS:-} --remap-path-prefix=$PWD=respool --remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=cargo"
[ -z "${PROFILE_DATA:-}" ] || RUSTFLAGS="$RUSTFLAGS -Cprofile-use=$(realpath "$PROFILE_DATA")"
export RUSTFLAGS
cargo rustc --locked --profile "$profile" --target "$target" --bin respool -- "${link[@]}"
built=$(cargo metadata --locked --no-deps --format-version 1 | sed 's/.*"target_directory":"\([^"]*\)".*/\1/')/$target/$profile/respool

version=$("$built" -V | cut -d' ' -f2)
case $target in x86_64-*) architecture=amd64 ;; aarch64-*) architecture=arm64 ;; *) fail "no Debian architecture is known for $target" ;; esac
stage=$(mktemp -d); trap 'rm -rf "$stage"' EXIT

# The files as they are installed.
root=$stage/root
install -D -m 755 "$built" "$root/usr/bin/respool"
"$built" man --dir "$root/usr/share/man/man1" >/dev/null
gzip -9n "$root"/usr/share/man/man1/*.1
mkdir -p "$root"/usr/share/{bash-completion/completions,zsh/vendor-completions,fish/vendor_completions.d}
"$built" completions bash > "$root/usr/share/bash-completion/completions/respool"
"$built" completions zsh > "$root/usr/share/zsh/vendor-completions/_respool"
"$built" completions fish > "$root/usr/share/fish/vendor_completions.d/respool.fish"
mkdir -p "$root/usr/lib/systemd/user" "$root/usr/share/doc/respool/examples"
sed -e 's|%h/.local/bin/respool|/usr/bin/respool|' -e '/^Description=/a Documentation=man:respool(1)' \
    deploy/respool.service > "$root/usr/lib/systemd/user/respool.service"
install -m 644 deploy/respool.env respool.example.toml openclaw.example.json "$root/usr/share/doc/respool/examples/"
install -m 644 README.md "$root/usr/share/doc/respool/"
gzip -9nc CHANGELOG.md > "$root/usr/share/doc/respool/changelog.gz"
{
    printf 'Format: https://www.debian.org/doc/packaging-manuals/copyright-format/1.0/\nUpstream-Name: respool\n\n'
    printf 'Files: *\nCopyright: 2026 The respool authors\nLicense: MIT or Apache-2.0\n'
    printf ' The Apache License 2.0 is in /usr/share/common-licenses/Apache-2.0. The other one:\n .\n'
    sed -e 's/^$/./' -e 's/^/ /' LICENSE-MIT
} > "$root/usr/share/doc/respool/copyright"

# The Debian package. It starts nothing: respool is a service of a user (`respool service install`, or `systemctl --user`).
package=$stage/package
cp -a "$root" "$package"; mkdir "$package/DEBIAN"
depends=""; [[ $target == *-musl ]] || depends="Depends: libc6, libgcc-s1
"
cat > "$package/DEBIAN/control" <<CONTROL
Package: respool
Version: $version
Architecture: $architecture
Maintainer: The respool authors <respool@users.noreply.github.com>
Installed-Size: $(du -sk "$root" | cut -f1)
${depends}Recommends: ca-certificates, bubblewrap, passt
Section: net
Priority: optional
Description: relay between OpenClaw or OpenAI clients and vLLM
 Requests with tools are asked whole; tool calls that models write in a dozen
 wrong ways come out right; errors and fields that break clients are gone;
 slow models do not trip watchdogs.
CONTROL
(cd "$package" && find usr -type f -exec md5sum {} + | sort -k2 > DEBIAN/md5sums)
dpkg-deb --root-owner-group --build "$package" "$out/respool_${version}_$architecture.deb" >/dev/null

# The archive, for everybody else.
name=respool-$version-$target
mkdir "$stage/$name"
cp "$built" LICENSE-MIT LICENSE-APACHE README.md CHANGELOG.md respool.example.toml openclaw.example.json "$stage/$name/"
cp -r deploy "$stage/$name/deploy"; cp -r "$root/usr/share/man" "$stage/$name/man"
tar -C "$stage" --owner=0 --group=0 --sort=name --mtime="@$SOURCE_DATE_EPOCH" -cf - "$name" | gzip -9n > "$out/$name.tar.gz"

if [ "${SBOM:-yes}" != no ]; then
    cargo cyclonedx --version >/dev/null 2>&1 || fail "the bill of materials needs cargo-cyclonedx: cargo install cargo-cyclonedx (or SBOM=no)"
    cargo cyclonedx --format json --target "$target" --override-filename respool-sbom >/dev/null
    mv respool-sbom.json "$out/$name.cdx.json"
    find crates fuzz -name respool-sbom.json -delete
fi
(cd "$out" && rm -f SHA256SUMS && sha256sum respool* > SHA256SUMS)
ls -l "$out"
