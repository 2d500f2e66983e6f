-- Every lease with the server's time. KEYS: leases. Gives seconds, microseconds, and a flat list
-- of node, beat.
local now = redis.call('TIME')
return {now[1], now[2], redis.call('HGETALL', KEYS[1])}
