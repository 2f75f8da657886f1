#!/usr/bin/env bash
# Makes an image from a static binary with deploy/image.sh, reads it back as `podman load` would, and starts the program in it.
# usage: image.sh BINARY WORK
set -euo pipefail
binary=$1 work=$2
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
b() { buildah --root "$work/containers" --runroot "$work/containers-run" "$@"; }
"$(dirname "$0")/../../deploy/image.sh" "$binary" "$work/image.tar"
started=$(b from "oci-archive:$work/image.tar")
trap 'b rm "$started" >/dev/null' EXIT
b run "$started" -- /respool --version | head -1 | grep -q '^respool '
b run "$started" -- /respool demo | grep -q 'the meeting is at nine'
b inspect --format '{{.OCIv1.Config.User}} {{.OCIv1.Config.StopSignal}} {{.OCIv1.Config.Entrypoint}} {{.OCIv1.Config.Cmd}}' "$started" |
    grep -qx '65532:65532 SIGTERM \[/respool\] \[serve\]'
