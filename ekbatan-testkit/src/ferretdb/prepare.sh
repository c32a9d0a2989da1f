# Creates the data of a PostgreSQL with the extension documentdb: $1 its programs, $2 the
# folder, $3.. its settings.
set -eu
programs=$1
folder=$2
shift 2
"$programs/initdb" --pgdata "$folder/data" --username postgres --auth trust \
    --encoding UTF8 --no-locale --no-sync
# Alone on the data, so that no server has to be waited for.
echo 'CREATE EXTENSION documentdb CASCADE' |
    "$programs/postgres" --single "$@" -D "$folder/data" postgres >"$folder/extension" 2>&1
if grep -E ' (ERROR|FATAL|PANIC): ' "$folder/extension"; then exit 1; fi
mkdir "$folder/state"
