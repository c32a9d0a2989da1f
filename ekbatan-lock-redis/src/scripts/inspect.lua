-- Returns the stored lease, its remaining milliseconds, and the time.
-- KEYS: lock
local held = redis.call('GET', KEYS[1])
if not held then
    return false
end
local time = redis.call('TIME')
local now = tonumber(time[1]) * 1000 + math.floor(tonumber(time[2]) / 1000)
return {held, redis.call('PTTL', KEYS[1]), now}
