-- Releases a key, if the caller still owns it, and notifies waiters. If the answer of a try was
-- lost, also prevents that try from taking the key later.
-- KEYS: lock, wanted, given up
-- ARGV: owner, channel, key, how long to reject the cancelled try (0: its answer is known)
-- Returns {whether the caller owned it, whether it is wanted}.
if ARGV[4] ~= '0' then
    redis.call('SET', KEYS[3], '1', 'PX', ARGV[4])
end
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, 36) ~= ARGV[1] then
    return {0, 0}
end
redis.call('DEL', KEYS[1])
-- A waiter that is notified but comes too late marks the key again.
local wanted = redis.call('DEL', KEYS[2])
if wanted == 1 then
    redis.call('PUBLISH', ARGV[2], ARGV[3])
end
return {1, wanted}
