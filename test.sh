#!/usr/bin/env bash
# Everything that must hold before a change lands: one command on a fresh Debian machine.
#
#   ./test.sh          all checks and tests
#   ./test.sh quick    format, lints, unit tests, and the suite on memory, SQLite and Redis
#
# It installs the packages that are missing through apt when it runs as root, else it prints the exact
# command and stops. A store whose server is missing fails the run: LOCK_TEST_REQUIRE is "all" here.
set -euo pipefail
cd "$(dirname "$0")"

mode=${1:-full}
case $mode in full | quick) ;; *) echo "usage: ./test.sh [quick]" >&2; exit 64 ;; esac

export LOCK_TEST_REQUIRE=${LOCK_TEST_REQUIRE:-all}
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
log=$(mktemp "${TMPDIR:-/tmp}/distlock-test.XXXXXX")
trap 'rm -f "$log"' EXIT

step() { printf '\n== %s (%ss)\n' "$*" "$SECONDS"; }
die() { printf '%s\n' "$@" >&2; exit 1; }

# --- what must be there -------------------------------------------------------------------------

# probe:package. A probe is a command, or the pattern of a path; one that finds nothing asks for its package.
needed=(
    cc:gcc kill:procps script:bsdutils
    redis-server:redis-server
    etcd:etcd-server etcdctl:etcd-client
    # The etcd client is generated at build time.
    protoc:protobuf-compiler '/usr/include/google/protobuf/timestamp.proto:libprotobuf-dev'
    java:default-jre-headless '/usr/share/java/zookeeper.jar:zookeeper'
    '/usr/lib/postgresql/*/bin/postgres:postgresql' pgbouncer:pgbouncer
    mariadbd:mariadb-server
    # Certificates for the tests of TLS.
    openssl:openssl
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
        DEBIAN_FRONTEND=noninteractive bash -c "$install" >"$log" 2>&1 || { cat "$log"; die "this failed: $install"; }
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

# --- the text of the code -----------------------------------------------------------------------

step "format"
cargo fmt --all --check

clippy() {
    step "clippy $*"
    cargo clippy --locked "$@"
}
# The mutants of the stores stand behind a cfg: here they are part of the code.
clippy --workspace --all-features --all-targets -- -D warnings --cfg distlock_mutants
if [ "$mode" = full ]; then
    # As they are shipped: without mutants. A store's crate is checked with the feature that brings it.
    clippy -p distlock -p lock-cli --all-features --lib --bins -- -D warnings
    clippy -p distlock -p lock-core -p conformance-tests --no-default-features --all-targets -- -D warnings
    for feature in $(sed -n '/^\[features\]/,/^\[/{s/^\([a-z][a-z-]*\) *=.*/\1/p}' Cargo.toml); do
        case $feature in
            default | full) ;;
            tls | metrics) ;; # nothing without a store; `--all-features` has them with each
            *) clippy -p distlock --features "$feature" --lib -- -D warnings ;;
        esac
    done
    clippy -p lock-cli --no-default-features --bins -- -D warnings

    step "docs"
    RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --all-features --no-deps --quiet

    step "dependencies"
    if command -v cargo-deny >/dev/null 2>&1; then
        cargo deny --offline check bans licenses sources
    else
        echo "not run: cargo deny is not installed (cargo install cargo-deny --locked); deny.toml is its configuration"
    fi
fi

# --- the tests ----------------------------------------------------------------------------------

# Most tests wait: for a ttl, for a server. So as many test programs as there are processors run side by
# side. Cargo is told to note them instead of running them, each with the environment that it gives it.
jobs=$(mktemp -d "${TMPDIR:-/tmp}/distlock-jobs.XXXXXX")
trap 'rm -rf "$log" "$jobs"' EXIT
export DISTLOCK_JOBS=$jobs
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
failed=()

# note ARGS…: builds the test programs of `cargo test ARGS…` and notes them.
note() {
    step "cargo test --no-run $*"
    env "CARGO_TARGET_${host}_RUNNER=$PWD/.ci/note-test" cargo test --locked "$@" >"$log" 2>&1 ||
        { cat "$log"; die "FAILED: cargo test --no-run $*"; }
}
export RUSTC_WORKSPACE_WRAPPER=$PWD/.ci/rustc-with-mutants
# Some tests start the examples.
step "examples"
cargo build --locked --workspace --all-features --examples --quiet
note --workspace --all-features --tests
if [ "$mode" = quick ]; then
    # Everything that needs no server, and one store that does.
    find "$jobs" -name '*.job' | grep -vE '/(lock-(core|testkit)|conformance-tests|lock-redis-conformance|lock-sql-sqlite|[a-z-]+-lib-)' |
        xargs -r rm --
else
    # What a build without any store says to a URL whose feature is missing.
    note -p distlock --no-default-features --test connect
fi

step "tests, $(nproc) programs at a time"
# What computes, first and with the lowest priority; then the longest, so that none is left over at the end.
list() { find "$jobs" -name '*.job' | grep -E "$@" | sort || true; }
computes='/redlock-model-' long='conformance|mutants|faults|small_backend|scenes'
{ list "$computes"; list "$long" | { grep -v "$computes" || true; }; list -v "$computes|$long"; } |
    xargs -P "$(nproc)" -n 1 .ci/run-test

# What failed beside others is run again alone: on two busy processors an answer may come too late for a
# test whose subject is time. Both results are shown. Two holders and falling fences have no such excuse.
if [ -e "$jobs/failed" ]; then
    step "again, one at a time"
    sort "$jobs/failed" | while read -r job; do DISTLOCK_ALONE=1 .ci/run-test "$job"; done
fi
[ ! -e "$jobs/failed-for-good" ] || mapfile -t -O "${#failed[@]}" failed <"$jobs/failed-for-good"
cat "$jobs"/*.out >"$log"

if [ "$mode" = full ]; then
    step "examples in the docs"
    cargo test --locked --workspace --all-features --doc 2>&1 | tee -a "$log" |
        { grep -vE '^test .* \.\.\. ok$|^$|^running [0-9]+ tests?$|^ +(Compiling|Running) ' || true; } ||
        failed+=("cargo test --doc")
fi

step "summary"
grep -E '^[a-z0-9-]+: [0-9]+ ran, |^mutants: |^repeated: ' "$log" || true
echo "ignored, and why:"
grep -E '^ +[0-9]+ ignored: ' "$log" | sed 's/^ *[0-9]* ignored: //' | sort | uniq -c || true
awk '/^test result: /{p += $4; f += $6; i += $8} END {printf "tests: %d passed, %d failed, %d skipped\n", p, f, i}' "$log"
echo "took ${SECONDS}s"
((${#failed[@]} == 0)) || die "FAILED:" "${failed[@]}"
grep -qE '^[a-z0-9-]+: [0-9]+ ran, ' "$log" || die "FAILED: no conformance case was run"
mutants=$(sed -n 's/^mutants: \([0-9]*\) of \([0-9]*\) killed$/\1 \2/p' "$log")
[ -n "$mutants" ] || die "FAILED: no mutant was run"
while read -r killed all; do
    [ "$killed" = "$all" ] || die "FAILED: $killed of $all mutants were killed"
done <<<"$mutants"
