#!/usr/bin/env bash
# Runs the conformance suite of each store on servers of other Debian and Ubuntu releases, and prints a line for
# each that belongs into the table of docs/guide/stores.md.
#
#   ./versions.sh                        every server of the table below
#   ./versions.sh debian/trixie:redis    some of them
#
# By hand, and as root: it gets packages by debootstrap, unpacks them below $DISTLOCK_VERSIONS (/var/tmp by default,
# some 2 GB, removed at the end), and binds /tmp, /dev and /proc into them. No script of a package is run. The tests
# start these servers themselves, with faults, as they start those of the machine.
set -euo pipefail
cd "$(dirname "$0")"

# release:kind packages. A kind is what is asked for, and names the tests that are run.
servers=(
    'debian/bullseye:redis    redis-server'
    'debian/bullseye:etcd     etcd-server etcd-client'
    'debian/bullseye:postgres postgresql-13'
    'debian/trixie:redis      redis-server'
    'debian/trixie:valkey     valkey-server'
    'debian/trixie:etcd       etcd-server etcd-client'
    'debian/trixie:postgres   postgresql-17'
    'debian/trixie:mariadb    mariadb-server'
    'debian/sid:postgres      postgresql-18'
)
[ "$(id -u)" = 0 ] || { echo "versions.sh: it has to be root, for debootstrap and bind mounts" >&2; exit 1; }
command -v debootstrap >/dev/null || { echo "versions.sh: apt-get install debootstrap" >&2; exit 1; }

place=$(mktemp -d "${DISTLOCK_VERSIONS:-/var/tmp}/distlock-versions.XXXXXX")
# The folders of servers that are tested run as other users.
chmod 755 "$place"
clean_up() {
    local mounted
    mapfile -t mounted < <(awk -v place="$place/" 'index($2, place) == 1 {print $2}' /proc/mounts | sort -r)
    # Nothing is removed through a mount that is still there.
    for mounted in "${mounted[@]}"; do umount --lazy "$mounted" || return; done
    rm -rf "$place"
}
trap clean_up EXIT

# The programs of the tests, as ./test.sh builds them.
jobs=$place/jobs
mkdir -p "$jobs"
host=$(rustc -vV | sed -n 's/^host: //p' | tr 'a-z-' 'A-Z_')
env "CARGO_TARGET_${host}_RUNNER=$PWD/.ci/note-test" DISTLOCK_JOBS="$jobs" LOCK_TEST_REQUIRE=all \
    RUSTC_WORKSPACE_WRAPPER="$PWD/.ci/rustc-with-mutants" cargo test --locked --quiet --workspace --all-features \
    --test conformance --test postgres_conformance --test mysql_conformance

# get RELEASE ROOT PACKAGE…: the packages and all that they need, unpacked.
get() {
    local release=$1 root=$2 mirror=http://deb.debian.org/debian archive packages=${*:3}
    [ "${release%%/*}" = debian ] || mirror=http://archive.ubuntu.com/ubuntu
    mkdir -p "$root"
    debootstrap --variant=minbase --download-only --merged-usr --include="${packages// /,}" \
        "${release#*/}" "$root" "$mirror" >"$place/log" 2>&1 || { tail -n 5 "$place/log"; return 1; }
    # Below /usr is what earlier releases have beside it.
    for folder in bin sbin lib lib64; do mkdir -p "$root/usr/$folder"; ln -sfn "usr/$folder" "$root/$folder"; done
    for archive in "$root"/var/cache/apt/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$archive" | tar -x --keep-directory-symlink -C "$root"
        rm "$archive"
    done
    cp /etc/passwd /etc/group "$root/etc/"
    for folder in tmp dev proc; do mkdir -p "$root/$folder" && mount --rbind --make-rslave "/$folder" "$root/$folder"; done
}

# wrap ROOT PROGRAM TO: a program that runs another one inside, whoever calls it, with the same process id.
wrap() {
    # A root folder of one's own needs a namespace, where the caller keeps his number.
    cat >"$3" <<END
#!/bin/sh
exec unshare --user --map-user="\$(id -u)" --map-group="\$(id -g)" --root='$1' --wd=/ '$2' "\$@"
END
    chmod 755 "$3"
}

# found ROOT PATTERN: a path inside.
found() { (cd "$1" && compgen -G "${2#/}" | head -n 1 | sed 's|^|/|'); }

# run KIND ROOT: the suite; says the version, and how it went.
run() {
    local kind=$1 root=$2 with=$2/with program test variable version
    mkdir -p "$with"
    case $kind in
        redis | valkey)
            program=$(found "$root" "usr/bin/$kind-server") test=lock-redis-conformance variable=LOCK_TEST_REDIS_SERVER
            # The clients of the tests are the machine's.
            wrap "$root" "$program" "$with/server"
            version=$("$with/server" --version) ;;
        etcd)
            test=lock-etcd-conformance variable=LOCK_TEST_ETCD
            wrap "$root" /usr/bin/etcd "$with/server"
            version=$("$with/server" --version | head -n 1) ;;
        mariadb)
            test=lock-sql-mysql_conformance variable=LOCK_TEST_MARIADBD
            # It becomes another user by itself, which a namespace with one user does not allow.
            printf '#!/bin/sh\nexec chroot %q /usr/sbin/mariadbd "$@"\n' "$root" >"$with/server"
            chmod 755 "$with/server"
            version=$("$with/server" --version) ;;
        postgres)
            test=lock-sql-postgres_conformance variable=LOCK_TEST_POSTGRES_BIN
            local folder own
            folder=$(found "$root" 'usr/lib/postgresql/*/bin')
            # The tests tell a version by the folder above.
            own=$with/$(basename "$(dirname "$folder")")/bin
            mkdir -p "$own"
            ln -sfn "$own" "$with/server"
            for program in initdb postgres; do wrap "$root" "$folder/$program" "$own/$program"; done
            version=$("$with/server/postgres" --version) ;;
    esac
    local said="$place/said" verdict=passes
    env "$variable=$(readlink -f "$with/server")" bash "$jobs/$test"-*.job >"$said" 2>&1 </dev/null || verdict=FAILS
    printf '%s | %s | %s | %s\n' "$kind" "$version" "$verdict" \
        "$(grep -hE '^[a-z0-9-]+: [0-9]+ ran, ' "$said" | head -n 1)"
    # A server that is too old has to be refused by name in the first of them.
    [ "$verdict" = passes ] || { grep -m 9 -E '^test .* FAILED$' "$said" || true; grep -m 3 -A 3 -iE 'panicked at|violated: |too old|not supported|cannot ' "$said" || tail -n 5 "$said"; }
}

failed=0
for line in "${servers[@]}"; do
    read -r -a words <<<"$line"
    what=${words[0]}
    if (($#)) && [[ " $* " != *" $what "* ]]; then continue; fi
    echo "== $what"
    # What two servers need may differ, so each has a root of its own.
    root=$place/${what//[\/:]/-}
    if get "${what%%:*}" "$root" "${words[@]:1}"; then run "${what#*:}" "$root"; else failed=1; fi
done
exit "$failed"
