# The five commands that you need most; `just` lists them. CONTRIBUTING.md explains the rest.

set positional-arguments

_default:
    @just --list --unsorted

# Format and lint, as CI does first
check:
    cargo fmt --all --check
    cargo clippy --locked --workspace --all-features --all-targets -- -D warnings --cfg distlock_mutants

# Lints, unit tests, and the suite on memory, SQLite and Redis
test:
    ./test.sh quick

# Everything that CI runs, on every store
all:
    ./test.sh

# Run the program from this clone: just run status deploy
run *ARGS:
    cargo run --locked --quiet -p lock-cli -- "$@"

# The documentation of the public crates, in a browser
docs:
    cargo doc --locked --no-deps --all-features -p distlock -p lock-core --open
