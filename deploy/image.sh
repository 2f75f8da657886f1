#!/usr/bin/env bash
# Makes the image of deploy/Containerfile from a static binary that is already built, and writes it as an OCI archive, which
# `podman load -i` and `docker load -i` read. Needs buildah.
# usage: image.sh BINARY ARCHIVE
set -euo pipefail
[ $# -eq 2 ] || { echo "usage: image.sh BINARY ARCHIVE" >&2; exit 2; }
binary=$(realpath "$1") archive=$(realpath -m "$2")
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d); trap 'rm -rf "$work"' EXIT
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
store=(--root "$work/images" --runroot "$work/run")

# What the Containerfile's last stage copies from the stage that builds.
mkdir -p "$work/build/etc/ssl/certs" "$work/build/state"
cp "$binary" "$work/build/respool"
cp /etc/ssl/certs/ca-certificates.crt "$work/build/etc/ssl/certs/"
sed -n '/^FROM scratch/,$p' "$here/Containerfile" > "$work/Containerfile"
buildah "${store[@]}" build --quiet --timestamp "${SOURCE_DATE_EPOCH:-$(date +%s)}" --build-context "build=$work/build" \
    --file "$work/Containerfile" --tag respool "$work/build" >/dev/null
rm -f "$archive"
buildah "${store[@]}" push --quiet respool "oci-archive:$archive:respool"
