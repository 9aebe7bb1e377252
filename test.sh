#!/usr/bin/env bash
# Everything that must hold before a change lands: one command on a fresh Debian machine.
#
#   ./test.sh          all checks and tests
#   ./test.sh quick    format, unit tests, and the suite on memory, SQLite and Redis; lints in what these need
#   ./test.sh soak     only the soak: every set-up under 2 000 faults (see docs/testing.md). Everything ends with one of
#                      fewer than half as many.
#                      What follows goes to it: `./test.sh soak --seed 42`
#
# As root it installs missing packages through apt; otherwise it prints the exact command and stops. A store
# whose server is missing fails the run: LOCK_TEST_REQUIRE is "all" here.
set -euo pipefail
cd "$(dirname "$0")"

mode=${1:-full}
case $mode:$# in full:0 | quick:1 | soak:*) ;; *) echo "usage: ./test.sh [quick | soak [OPTION...]]" >&2; exit 64 ;; esac

export LOCK_TEST_REQUIRE=${LOCK_TEST_REQUIRE:-all}
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
# Nothing is built twice here, and what would speed up a second build takes gigabytes.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
jobs=$(mktemp -d "${TMPDIR:-/tmp}/distlock-jobs.XXXXXX")
trap 'rm -rf "$jobs"' EXIT

step() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }
die() { printf '%s\n' "$@" >&2; exit 1; }

# --- what must be there -------------------------------------------------------------------------

# probe:package. A probe is a command or a path pattern; if it finds nothing, its package is needed.
needed=(
    cc:gcc kill:procps script:bsdutils chrt:util-linux
    redis-server:redis-server
    etcd:etcd-server etcdctl:etcd-client
    # The benchmarks' floor is etcd's own Rust client, which generates its code.
    protoc:protobuf-compiler '/usr/include/google/protobuf/timestamp.proto:libprotobuf-dev'
    java:default-jre-headless '/usr/share/java/zookeeper.jar:zookeeper'
    '/usr/lib/postgresql/*/bin/postgres:postgresql' pgbouncer:pgbouncer
    mariadbd:mariadb-server
    # A store outside of this repository, as an example.
    memcached:memcached
    # Certificates for the tests of TLS.
    openssl:openssl
    # The links of the guide.
    jq:jq
    # The examples: a page in a browser, and a unit of systemd.
    chromium:chromium chromedriver:chromium-driver systemd-analyze:systemd
)

found() {
    case $1 in
        /*) compgen -G "$1" >/dev/null ;;
        *) PATH=$PATH:/usr/sbin command -v "$1" >/dev/null 2>&1 ;;
    esac
}

step "packages"
missing=()
for pair in "${needed[@]}"; do
    found "${pair%%:*}" || missing+=("${pair#*:}")
done
if ((${#missing[@]})); then
    install="apt-get update && apt-get install -y --no-install-recommends ${missing[*]}"
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing: ${missing[*]}"
        DEBIAN_FRONTEND=noninteractive bash -c "$install" >"$jobs/apt" 2>&1 || { cat "$jobs/apt"; die "this failed: $install"; }
    else
        die "missing: ${missing[*]}" "run this as root, then try again:" "  $install"
    fi
fi
if ! command -v cargo >/dev/null 2>&1; then
    die "cargo is missing. Debian's own is too old (1.94 is needed); with rustup, see https://rustup.rs:" \
        "  curl --proto '=https' --tlsv1.2 -sSf https://sh.rustup.rs | sh"
fi
for tool in fmt clippy; do
    cargo "$tool" --version >/dev/null 2>&1 || die "cargo $tool is missing: rustup component add rustfmt clippy"
done
echo "$(cargo --version), $(rustc --version)"

# With the wrapper of the tests, so that nothing is built twice.
wrapper=$PWD/.ci/clippy-with-mutants
RUSTC_WORKSPACE_WRAPPER=$wrapper cargo build --locked --quiet -p xtask
xtask=${CARGO_TARGET_DIR:-target}/debug/xtask
if [ "$mode" = soak ]; then
    step "soak"
    RUSTC_WORKSPACE_WRAPPER=$wrapper "$xtask" soak "${@:2}"
    exit
fi

# --- the text of the code -----------------------------------------------------------------------

step "format"
cargo fmt --all --check

if [ "$mode" = full ]; then
    step "dependencies"
    # Without cargo deny the tests of advisories and dependencies check the same, against the snapshot.
    made=$(sed -n 's/^- Commit: .* of //p' .ci/advisories/README.md)
    echo "the snapshot of the RustSec advisories is $((($(date +%s) - $(date +%s -d "$made")) / 86400)) days old ($made)"
    if command -v cargo-deny >/dev/null 2>&1; then
        checks=(bans licenses sources)
        # What `cargo deny fetch` has put there.
        ! compgen -G "${CARGO_HOME:-$HOME/.cargo}/advisory-dbs/*" >/dev/null || checks+=(advisories)
        echo "cargo deny: ${checks[*]}"
        cargo deny --offline check "${checks[@]}"
    else
        echo "not run: cargo deny is not installed (cargo install cargo-deny --locked); deny.toml is its configuration"
    fi
fi

# --- the tests ----------------------------------------------------------------------------------

# verification/xtask builds them, with clippy as the compiler, runs them side by side, and judges how they ended. Each
# feature alone, and the shipped code without mutants, are checked beside them.
RUSTC_WORKSPACE_WRAPPER=$wrapper "$xtask" test "$jobs" "$mode" "$SECONDS"
