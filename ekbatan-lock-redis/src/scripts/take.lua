-- Takes a free key, with the next token. A key that is held is marked as wanted, so that its
-- release notifies the waiters.
-- KEYS: lock, fence, wanted, given up   ARGV: owner, holder, term, how long the mark lasts
-- Returns {1, token} or {0, remaining milliseconds}.
local held = redis.call('GET', KEYS[1])
if held then
    if string.sub(held, 1, 36) == ARGV[1] then
        -- This try was executed before, and its answer was lost.
        return {1, tonumber(string.match(held, '^[^|]*|(%d+)'))}
    end
    redis.call('SET', KEYS[3], '1', 'PX', ARGV[4])
    return {0, redis.call('PTTL', KEYS[1])}
end
if redis.call('EXISTS', KEYS[4]) == 1 then
    return {0, -1}
end
-- At least the clock, so that tokens grow even if the last one was lost.
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
local token = math.max(now, tonumber(redis.call('GET', KEYS[2]) or '0') + 1)
local digits = string.format('%.0f', token)
-- Kept until a day after the time that the token stands for. Later the clock alone is greater.
redis.call('SET', KEYS[2], digits, 'PX', string.format('%.0f', token - now + 86400000))
local value = ARGV[1] .. '|' .. digits .. '|' .. string.format('%.0f', now) .. '|' .. ARGV[2]
redis.call('SET', KEYS[1], value, 'NX', 'PX', ARGV[3])
return {1, token}
