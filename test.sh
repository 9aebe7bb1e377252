#!/usr/bin/env bash
# Everything that must hold before a change lands: one command on a fresh Debian machine.
#
#   ./test.sh          all checks and tests
#   ./test.sh quick    format, lints, unit tests, and the suite on memory, SQLite and Redis
#   ./test.sh soak     only the soak: every set-up under 2 000 faults (see docs/testing.md); a part of everything
#
# As root it installs missing packages through apt; otherwise it prints the exact command and stops. A store
# whose server is missing fails the run: LOCK_TEST_REQUIRE is "all" here.
set -euo pipefail
cd "$(dirname "$0")"

mode=${1:-full}
case $mode in full | quick | soak) ;; *) echo "usage: ./test.sh [quick | soak]" >&2; exit 64 ;; esac

export LOCK_TEST_REQUIRE=${LOCK_TEST_REQUIRE:-all}
export CARGO_TERM_COLOR=${CARGO_TERM_COLOR:-never}
# Nothing is built twice here, and what would speed up a second build takes gigabytes.
export CARGO_INCREMENTAL=${CARGO_INCREMENTAL:-0}
log=$(mktemp "${TMPDIR:-/tmp}/distlock-test.XXXXXX")
trap 'rm -f "$log"' EXIT

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

if [ "$mode" = soak ]; then
    step "soak"
    .ci/soak
    exit
fi

# --- the text of the code -----------------------------------------------------------------------

step "format"
cargo fmt --all --check

step "clippy --workspace --all-features --all-targets"
# The mutants of the stores are behind a cfg, which is on here. Each feature alone, and the shipped code
# without mutants, are checked in parallel with the tests.
cargo clippy --locked --workspace --all-features --all-targets -- -D warnings --cfg distlock_mutants

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

# Cargo builds the test programs, all with the same features. Its runner records each of them, with the
# environment that cargo sets, instead of running it.
jobs=$(mktemp -d "${TMPDIR:-/tmp}/distlock-jobs.XXXXXX")
export DISTLOCK_JOBS=$jobs
beside=
clean_up() {
    [ -z "$beside" ] || kill -- "-$beside" 2>/dev/null || true
    rm -rf "$log" "$jobs"
}
trap clean_up EXIT
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
export RUSTC_WORKSPACE_WRAPPER=$PWD/.ci/rustc-with-mutants
targets=(--tests)
if [ "$mode" = quick ]; then
    targets=(--lib --bins)
    for test in docs maps verdicts advisories dependencies packages it metrics 'memory_*' mutants small_backend \
        conformance sqlite_conformance; do
        targets+=(--test "$test")
    done
fi
step "cargo test --no-run --workspace --all-features ${targets[*]}"
env "CARGO_TARGET_${host}_RUNNER=$PWD/.ci/note-test" \
    cargo test --locked --workspace --all-features "${targets[@]}" >"$log" 2>&1 ||
    { cat "$log"; die "FAILED: the tests do not build"; }

# Optimised instead, beside the tests.
rm -f "$jobs"/lock-simulation-*
list() { find "$jobs" -name '*.job' | grep -E "$@" | sort || true; }
if [ "$mode" = quick ]; then
    # Everything that needs no server, and one store that needs one.
    list -v '/(lock-(core|testkit)|conformance-tests|distlock-(docs|maps|advisories|dependencies|packages)|lock-redis-conformance|lock-sql-sqlite|[a-z-]+-lib-)' |
        xargs -r rm --
fi

# Most tests wait for a ttl or a server. So more programs, and more tests within a program, run at a time than
# there are processors, and CPU-bound work runs beside them when processors are idle.
lanes=$(($(nproc) + ($(nproc) + 1) / 2))
export RUST_TEST_THREADS=${RUST_TEST_THREADS:-$((2 * $(nproc)))}
if [ "$mode" = full ]; then
    mapfile -t computes < <(list '/redlock-model-')
    # Without the wrapper that the tests are built with: these checks reuse their own earlier builds. They get only
    # the time that no test wants, so that they make none late: the kernel shares time between sessions first.
    env --default-signal=INT,QUIT -u RUSTC_WORKSPACE_WRAPPER setsid chrt --idle 0 \
        .ci/beside-tests "$jobs/beside" "${computes[@]}" </dev/null &
    beside=$!
fi
step "tests, $lanes programs at a time"
# The longest first, so that none runs alone at the end.
long='conformance|lock-(core|etcd|sql)-it|one_server|lock-redis-redlock-|mutants|faults|small_backend|scenes|swap|benches-short|hostile|outage|secrets'
{ list "$long"; list -v "$long"; } | { grep -v '/redlock-model-' || true; } | xargs -r -P "$lanes" -n 1 .ci/run-test

if [ -n "$beside" ]; then
    step "checks run beside the tests"
    wait "$beside" || echo "the checks beside the tests were aborted" >>"$jobs/failed"
    beside=
    cat "$jobs/beside"
fi

# On busy processors an answer may come too late for a timing test. Such a test is judged again, alone and
# more strictly. Two holders and falling fences are never excused.
if [ -e "$jobs/again" ]; then
    step "again, one at a time"
    sort -u "$jobs/again" | while read -r job; do RUST_TEST_THREADS=1 .ci/judge-again "$job"; done
fi
if [ "$mode" = full ]; then
    # Nothing else runs now: the servers of all set-ups run at once.
    step "soak"
    .ci/soak | tee "$jobs/soak.shown" || echo "the soak" >>"$jobs/failed"
fi
failed=()
[ ! -e "$jobs/failed" ] || mapfile -t failed < <(sort -u "$jobs/failed")
shopt -s nullglob
cat "$jobs"/*.out "$jobs"/beside.?????? >"$log"

step "summary"
grep -E '^[a-z0-9-]+: [0-9]+ ran, |^mutants: |^repeated: ' "$log" || true
[ "$mode" != full ] || grep -E '^soak: .* faults, |^repeated: ' "$jobs/soak.shown" || true
echo "ignored, and why:"
grep -E '^ +[0-9]+ ignored: ' "$log" | sed 's/^ *[0-9]* ignored: //' | sort | uniq -c || true
awk '/^test result: /{p += $4; f += $6; i += $8} END {printf "tests: %d passed, %d failed beside others, %d skipped\n", p, f, i}' "$log"
echo "took ${SECONDS}s"
((${#failed[@]} == 0)) || die "FAILED:" "${failed[@]}"
grep -qE '^[a-z0-9-]+: [0-9]+ ran, ' "$log" || die "FAILED: no conformance case was run"
# Each of them has a file that says which cases run.
without=$(($(grep -cE '^[a-z0-9-]+: [0-9]+ ran, ' "$log") - $(grep -c '^as expected: ' "$log" || true)))
[ "$without" = 0 ] || die "FAILED: $without of the conformance programs were not compared with what is expected of them"
mutants=$(sed -n 's/^mutants: \([0-9]*\) of \([0-9]*\) killed$/\1 \2/p' "$log")
[ -n "$mutants" ] || die "FAILED: no mutant was run"
while read -r killed all; do
    [ "$killed" = "$all" ] || die "FAILED: $killed of $all mutants were killed"
done <<<"$mutants"
