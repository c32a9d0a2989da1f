# Ends a server and removes its folder ($1) when the process that started the server is
# gone. That process holds the other end of standard input, and the system closes it when
# the process ends. Each input line is the id of the process to end, which leads a process
# group, or empty if there is none. The signal $2 makes the server end at once.

# A signal that ends the tests must not end this script first.
trap '' HUP INT QUIT TERM

folder=$1
end=$2
pid=
while read -r line; do pid=$line; done

# A zombie no longer runs.
runs() {
    state=
    read -r _ _ state _ <"/proc/$pid/stat" && [ "$state" != Z ]
}

if [ -n "$pid" ]; then
    # The whole group, because the preparation of a server starts other processes. `CONT`,
    # because a kill may have left the process stopped.
    kill -s "$end" -- "-$pid"
    kill -s CONT -- "-$pid"
    tries=500
    while runs && [ "$tries" -gt 0 ]; do
        sleep 0.02
        tries=$((tries - 1))
    done
    if runs; then kill -s KILL -- "-$pid"; fi
fi

# A killed PostgreSQL leaves a shared memory segment. The second field of line 7 of this
# file is its number.
if [ -f "$folder/data/postmaster.pid" ]; then
    segment=$(sed -n '7s/^ *[0-9]* *//p' "$folder/data/postmaster.pid")
    if [ -n "$segment" ]; then ipcrm -m "$segment"; fi
fi

# Processes that have just lost their server may still be writing.
tries=500
until rm -rf "$folder" || [ "$tries" -eq 0 ]; do
    sleep 0.02
    tries=$((tries - 1))
done
