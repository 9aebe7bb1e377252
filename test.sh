#!/usr/bin/env bash
# Everything that must hold before a change lands: one command on a fresh Debian machine.
#
#   ./test.sh          all checks and tests
#   ./test.sh quick    without the checks that rebuild everything (single features)
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
    cargo clippy --locked "$@" -- -D warnings
}
clippy --workspace --all-features --all-targets
if [ "$mode" = full ]; then
    clippy -p distlock -p lock-core -p conformance-tests --no-default-features --all-targets
    # Each feature of the facade alone, as an application has it: without what tests bring along.
    for feature in $(sed -n '/^\[features\]/,/^\[/{s/^\([a-z][a-z-]*\) *=.*/\1/p}' Cargo.toml); do
        [ "$feature" = default ] || clippy -p distlock --features "$feature" --lib
    done
    for store in lock-redis lock-etcd lock-zk; do
        clippy -p "$store" --no-default-features --lib
    done
    for dialect in sqlite postgres mysql; do
        clippy -p lock-sql --no-default-features --features "$dialect" --lib
    done
    clippy -p lock-cli --no-default-features --bins
fi

step "docs"
RUSTDOCFLAGS="-D warnings" cargo doc --locked --workspace --all-features --no-deps --quiet

step "dependencies"
if command -v cargo-deny >/dev/null 2>&1; then
    cargo deny --offline check bans licenses sources
else
    echo "not run: cargo deny is not installed (cargo install cargo-deny --locked); deny.toml is its configuration"
fi

# --- the tests ----------------------------------------------------------------------------------

# One test program after the other: side by side, the cases that count on answers in time failed on two cores.
# Shows what matters of a test run, and keeps all of it for the summary.
failed=()
run() {
    step "cargo $*"
    local quiet='^test .* \.\.\. ok$|^$|^running [0-9]+ tests?$|^ +(Compiling|Running|Downloaded|Downloading) '
    cargo "$@" 2>&1 | tee -a "$log" | { grep -vE "$quiet" || true; } || failed+=("cargo $*")
}
: >"$log"
run test --locked --workspace --all-features --no-fail-fast
# What a build without any store says to a URL whose feature is missing.
run test --locked -p distlock --no-default-features --test connect

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
