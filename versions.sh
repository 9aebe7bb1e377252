#!/usr/bin/env bash
# Runs the conformance suite of each store on servers of other Debian and Ubuntu releases, and prints a line for
# each that belongs into the table of docs/guide/stores.md.
#
#   ./versions.sh                        every server of the table below
#   ./versions.sh debian/trixie:redis    some of them
#
# By hand, and as root: it gets packages by debootstrap, unpacks them below $DISTLOCK_VERSIONS (/var/tmp by default,
# some 5 GB, removed at the end), and binds /tmp, /dev and /proc into them. No script of a package is run. The tests
# start these servers themselves, with faults, as they start those of the machine. A server that is too old has to be
# refused by name, in every case alike.
set -euo pipefail
cd "$(dirname "$0")"

# release:kind packages. A kind is what is asked for, and names the tests that are run. The first four are too old.
servers=(
    'ubuntu/bionic:redis       redis-server'
    'ubuntu/focal:postgres     postgresql-12'
    'debian/bullseye:zookeeper libzookeeper-java'
    'debian/bullseye:mariadb   mariadb-server'
    'debian/bullseye:redis     redis-server'
    'debian/bullseye:postgres  postgresql-13'
    'debian/trixie:redis       redis-server'
    'debian/trixie:valkey      valkey-server'
    'debian/trixie:etcd        etcd-server etcd-client'
    'debian/trixie:zookeeper   libzookeeper-java'
    'debian/trixie:postgres    postgresql-17'
    'debian/trixie:mariadb     mariadb-server'
    'debian/sid:postgres       postgresql-18'
    'debian/sid:mysql          mysql-server'
)
# How a store refuses a server that is too old.
by_name='this server is [^;]*: use [^;]* or newer'
# With what the releases of Ubuntu are signed; a package of Debian 13 has it.
ubuntu_keyring=${DISTLOCK_UBUNTU_KEYRING:-/usr/share/keyrings/ubuntu-archive-keyring.gpg}
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
    local release=$1 root=$2 mirror=http://deb.debian.org/debian archive packages=${*:3} from=()
    if [ "${release%%/*}" = ubuntu ]; then
        mirror=http://archive.ubuntu.com/ubuntu from=(--components=main,universe --keyring="$ubuntu_keyring")
    fi
    mkdir -p "$root"
    debootstrap --variant=minbase --download-only --merged-usr --force-check-gpg "${from[@]}" \
        --include="${packages// /,}" "${release#*/}" "$root" "$mirror" >"$place/log" 2>&1 ||
        { tail -n 5 "$place/log"; return 1; }
    # Below /usr is what earlier releases have beside it.
    for folder in bin sbin lib lib64; do mkdir -p "$root/usr/$folder"; ln -sfn "usr/$folder" "$root/$folder"; done
    for archive in "$root"/var/cache/apt/archives/*.deb; do
        dpkg-deb --fsys-tarfile "$archive" | tar -x --keep-directory-symlink -C "$root"
        rm "$archive"
    done
    # With `localhost`: PostgreSQL before 15 collects no statistics without it, and then a query for them waits for 10 s.
    cp /etc/passwd /etc/group /etc/hosts "$root/etc/"
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

# become ROOT PROGRAM [OPTION…] TO: as `wrap`, for a program that is started as root and becomes another user by
# itself, which a namespace with one user does not allow.
become() {
    printf '#!/bin/sh\nexec chroot%s "$@"\n' "$(printf ' %q' "${@:1:$#-1}")" >"${!#}"
    chmod 755 "${!#}"
}

# class_path FOLDER: the jars of ZooKeeper there. Each names others by their paths on the machine, so all are named
# before it, and one way to log.
class_path() {
    local jars
    jars=$(compgen -G "$1/*.jar" | grep -vE '/(zookeeper|slf4j-|jcl-over-|jul-to-|log4j-over-)' | paste -sd:)
    [ ! -e "$1/zookeeper-jute.jar" ] || jars=$1/zookeeper-jute.jar:$jars
    echo "$jars:$1/slf4j-api.jar:$1/slf4j-simple.jar:$1/zookeeper.jar"
}

# is_refused SAID: whether every case that was run failed, and for this reason.
is_refused() {
    local failed
    failed=$(grep -cE '^test .* FAILED$' "$1") || return 1
    ! grep -qE '^test .* ok$' "$1" && [ "$(grep -cE "$by_name" "$1")" -ge "$failed" ]
}

# found ROOT PATTERN: a path inside.
found() { (cd "$1" && compgen -G "${2#/}" | head -n 1 | sed 's|^|/|'); }

# run KIND ROOT: the suite; says the version, and how it went.
run() {
    local kind=$1 root=$2 with=$2/with program test version settings
    mkdir -p "$with"
    case $kind in
        redis | valkey)
            program=$(found "$root" "usr/bin/$kind-server") test=lock-redis-conformance
            # The clients of the tests are the machine's.
            wrap "$root" "$program" "$with/server"
            settings=(LOCK_TEST_REDIS_SERVER="$with/server")
            version=$("$with/server" --version) ;;
        etcd)
            test=lock-etcd-conformance
            wrap "$root" /usr/bin/etcd "$with/server"
            settings=(LOCK_TEST_ETCD="$with/server")
            version=$("$with/server" --version | sed -n 1p) ;;
        zookeeper)
            test=lock-zk-conformance
            settings=(LOCK_TEST_ZOOKEEPER_JAR="$(class_path "$root/usr/share/java")")
            version=$(readlink "$root/usr/share/java/zookeeper.jar") ;;
        mariadb)
            test=lock-sql-mysql_conformance
            become "$root" /usr/sbin/mariadbd "$with/server"
            # It looks for the machine's name, which nobody has told it.
            become "$root" /usr/bin/mariadb-install-db --force "$with/install"
            settings=(LOCK_TEST_MARIADBD="$with/server" LOCK_TEST_MARIADB_INSTALL_DB="$with/install")
            version=$("$with/server" --version) ;;
        mysql)
            test=lock-sql-mysql_conformance
            become "$root" /usr/sbin/mysqld "$with/server"
            settings=(LOCK_TEST_MARIADBD="$with/server")
            version=$("$with/server" --version) ;;
        postgres)
            test=lock-sql-postgres_conformance
            local folder own
            folder=$(found "$root" 'usr/lib/postgresql/*/bin')
            # The tests tell a version by the folder above.
            own=$with/$(basename "$(dirname "$folder")")/bin
            mkdir -p "$own"
            for program in initdb postgres; do wrap "$root" "$folder/$program" "$own/$program"; done
            settings=(LOCK_TEST_POSTGRES_BIN="$own")
            version=$("$own/postgres" --version) ;;
    esac
    local said="$place/said" verdict=passes ran
    env "${settings[@]}" bash "$jobs/$test"-*.job >"$said" 2>&1 </dev/null || verdict=FAILS
    ran=$(grep -hE '^[a-z0-9-]+: [0-9]+ ran, ' "$said" | head -n 1)
    [ "$verdict" = passes ] || ! is_refused "$said" || verdict=refused
    printf '%s | %s | %s | %s\n' "$kind" "$version" "$verdict" "$ran"
    case $verdict in
        refused) grep -m 1 -oE "$by_name.*" "$said" ;;
        FAILS)
            failed=1
            grep -m 9 -E '^test .* FAILED$' "$said" || true
            grep -m 3 -A 3 -E 'panicked at|violated: ' "$said" || tail -n 5 "$said" ;;
    esac
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
