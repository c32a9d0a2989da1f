# Runs PostgreSQL and FerretDB until one of them ends, or until this is told to end: $1 the
# programs of PostgreSQL, $2 the folder, $3 the program of FerretDB, $4 its port, $5.. the settings
# of PostgreSQL.
programs=$1
folder=$2
ferretdb=$3
port=$4
shift 4

gateway=
postgres=
stop() {
    trap '' TERM
    [ -z "$gateway" ] || kill -TERM "$gateway"
    kill -INT "$postgres"
    wait
    exit 0
}
trap stop TERM

is_running() { kill -0 "$1" 2>/dev/null; }

# A kill at times damages the indexes of documentdb, so that every write fails from then on. So they
# are made again from the documents. Fails if processes of the killed server are still there.
mend_indexes() {
    [ ! -f "$folder/data/postmaster.pid" ] ||
        echo 'REINDEX SCHEMA documentdb_data' |
        "$programs/postgres" --single "$@" -D "$folder/data" postgres >"$folder/reindex" 2>&1
}

# Starts PostgreSQL. Fails if it ends before it is ready.
start_postgres() {
    "$programs/postgres" "$@" -D "$folder/data" &
    postgres=$!
    # This file has its process in the first line, and its state in the last one.
    until grep -qx "$postgres" "$folder/data/postmaster.pid" 2>/dev/null &&
        grep -q '^ready' "$folder/data/postmaster.pid"; do
        is_running "$postgres" || return 1
        sleep 0.02
    done
}

# Processes of a server that was killed a moment ago may still use its memory. A new one then ends.
tries=100
until mend_indexes "$@" && start_postgres "$@"; do
    tries=$((tries - 1))
    [ "$tries" -gt 0 ] || exit 1
    sleep 0.1
done

DO_NOT_TRACK=1 "$ferretdb" "--postgresql-url=postgres://postgres@/postgres?host=$folder" \
    "--listen-addr=127.0.0.1:$port" --debug-addr=- "--state-dir=$folder/state" \
    --no-auth --telemetry=disable --log-level=WARN &
gateway=$!
# Without PostgreSQL it is of no use.
while is_running "$gateway" && is_running "$postgres"; do sleep 0.1; done
kill -KILL "$gateway" "$postgres" 2>/dev/null
exit 1
