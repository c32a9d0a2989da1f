# Ends a server and removes its folder ($1) once the process that started it is
# gone. That process holds the other end of our standard input; however it ends,
# the system closes it. Each line that comes in is the id of the process to end,
# which leads a group of processes, or empty if there is none at present. The
# signal $2 makes a server end at once.

# What ends the tests must not end us first.
trap '' HUP INT QUIT TERM

folder=$1
end=$2
pid=
while read -r line; do pid=$line; done

# A process that ended but was not collected by its parent no longer runs.
runs() {
    state=
    read -r _ _ state _ <"/proc/$pid/stat" && [ "$state" != Z ]
}

if [ -n "$pid" ]; then
    # The group, because what prepares a server starts others. It may have been
    # stopped on the way to being killed.
    kill -s "$end" -- "-$pid"
    kill -s CONT -- "-$pid"
    tries=500
    while runs && [ "$tries" -gt 0 ]; do
        sleep 0.02
        tries=$((tries - 1))
    done
    if runs; then kill -s KILL -- "-$pid"; fi
fi

# A PostgreSQL that was killed leaves a segment of shared memory, and its number in
# the second field of the seventh line of this file.
if [ -f "$folder/data/postmaster.pid" ]; then
    segment=$(sed -n '7s/^ *[0-9]* *//p' "$folder/data/postmaster.pid")
    if [ -n "$segment" ]; then ipcrm -m "$segment"; fi
fi

# Processes that just lost their server may still be writing.
tries=500
until rm -rf "$folder" || [ "$tries" -eq 0 ]; do
    sleep 0.02
    tries=$((tries - 1))
done
