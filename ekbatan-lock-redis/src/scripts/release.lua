-- Releases a key, if the caller still owns it, and passes it on. If the answer of a try was lost,
-- also prevents that try from taking the key later.
-- KEYS: lock, waiters, given up, fence
-- ARGV: owner, channel, key, how long to reject the cancelled try (0: its answer is known),
--       how long the next process may take to confirm, how long a place lasts
-- Returns {whether the caller owned it, whether it is wanted}.
if ARGV[4] ~= '0' then
    redis.call('SET', KEYS[3], '1', 'PX', ARGV[4])
end
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, 36) ~= ARGV[1] then
    return {0, 0}
end
return {1, pass_on(KEYS[1], KEYS[4], KEYS[2], ARGV[2], ARGV[3], ARGV[5], ARGV[6])}
