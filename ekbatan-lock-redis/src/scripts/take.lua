-- Takes a key that is free, or that was passed on to this process. A process that finds the key
-- held gets a place among those that wait, if it waits.
-- KEYS: lock, fence, waiters, given up
-- ARGV: owner, holder, term, process, how long a place lasts, whether the process waits (1)
-- Returns {1, token} or {0, remaining milliseconds}.
local held = redis.call('GET', KEYS[1])
local owner = held and string.sub(held, 1, 36)
if owner == ARGV[1] then
    -- This try was executed before, and its answer was lost.
    return {1, tonumber(string.match(held, '^[^|]*|(%d+)'))}
end
if redis.call('EXISTS', KEYS[4]) == 1 then
    return {0, -1}
end
local now = clock()
if held and owner ~= ARGV[4] then
    if ARGV[6] == '1' then
        wait_in(KEYS[3], ARGV[4], now, ARGV[5])
    end
    return {0, redis.call('PTTL', KEYS[1])}
end
local token = held and tonumber(string.match(held, '^[^|]*|(%d+)')) or next_token(KEYS[2], now)
leave(KEYS[3], ARGV[4], now, ARGV[5])
redis.call('SET', KEYS[1], value(ARGV[1], token, now, ARGV[2]), 'PX', ARGV[3])
return {1, token}
