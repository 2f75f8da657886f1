#!/bin/sh
# Builds and installs what is missing into DIR; nothing is written elsewhere. Usage: setup.sh DIR [--tools | --peers]
#   DIR/target       the Rust tools of this kit; with --tools nothing else
#   DIR/bin/nginx    the machine's nginx, or else the one of the Debian package, unpacked (no service is started)
#   DIR/venv-*       with --peers: smg and litellm, from the Python package index that pip is set up for
set -eu

kit=$(cd "$(dirname "$0")" && pwd)
case "$#:${1:-}:${2:-}" in
    1:[!-]*: | 2:[!-]*:--tools | 2:[!-]*:--peers) directory=$1 ;;
    *) echo "usage: setup.sh DIR [--tools | --peers]" >&2; exit 2 ;;
esac
mkdir -p "$directory/bin"
directory=$(cd "$directory" && pwd)

build_tools() {
    CARGO_TARGET_DIR="$directory/target" cargo build --release --locked --manifest-path "$kit/tools/Cargo.toml" \
        ${BENCH_FEATURES:+--features "$BENCH_FEATURES"}
}

install_nginx() {
    [ ! -x "$directory/bin/nginx" ] || return 0
    if system_nginx=$(PATH="$PATH:/usr/sbin" command -v nginx); then
        ln -sf "$system_nginx" "$directory/bin/nginx"
    else
        unpack_debian_nginx
    fi
    "$directory/bin/nginx" -v
}

unpack_debian_nginx() {
    mkdir -p "$directory/nginx"
    cd "$directory/nginx"
    apt-get download nginx || { apt-get update && apt-get download nginx; }
    dpkg-deb -x nginx_*.deb .
    ln -sf ../nginx/usr/sbin/nginx "$directory/bin/nginx"
    cd - >/dev/null
}

# install_in_venv NAME REQUIREMENT
install_in_venv() {
    python3 -m venv "$directory/venv-$1"
    "$directory/venv-$1/bin/pip" install --quiet --disable-pip-version-check "$2"
}

build_tools
[ "${2:-}" != "--tools" ] || exit 0
install_nginx
if [ "${2:-}" = "--peers" ]; then
    install_in_venv smg 'smg==1.13.0'
    install_in_venv litellm 'litellm[proxy]==1.106.2'
fi
