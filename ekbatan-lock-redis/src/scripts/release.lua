-- Gives a key back, if it is still its owner's, and tells those who want it. Of a try of which
-- nobody knows whether it arrived, it makes sure that it does not take the key later.
-- KEYS: lock, wanted, given up
-- ARGV: owner, channel, key, how long to refuse a try that was given up (0: it is known)
-- Answers {whether it was the owner's, whether it is wanted}.
if ARGV[4] ~= '0' then
    redis.call('SET', KEYS[3], '1', 'PX', ARGV[4])
end
local held = redis.call('GET', KEYS[1])
if not held or string.sub(held, 1, 36) ~= ARGV[1] then
    return {0, 0}
end
redis.call('DEL', KEYS[1])
-- Whoever hears of it and comes too late says again that he wants it.
local wanted = redis.call('DEL', KEYS[2])
if wanted == 1 then
    redis.call('PUBLISH', ARGV[2], ARGV[3])
end
return {1, wanted}
