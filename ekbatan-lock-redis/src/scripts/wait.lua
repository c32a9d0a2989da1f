-- Renews the place of a process that waits for a key.
-- KEYS: lock, waiters   ARGV: process, how long a place lasts
-- Returns the remaining milliseconds; -2 if the key is free, or was passed on to this process.
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, 36) == ARGV[1] then
    return -2
end
wait_in(KEYS[2], ARGV[1], clock(), ARGV[2])
return redis.call('PTTL', KEYS[1])
