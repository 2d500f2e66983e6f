-- Renew a lease at the server's time. KEYS: leases. ARGV: node, payload.
local now = redis.call('TIME')
local stamp = now[1] .. '.' .. string.format('%06d', tonumber(now[2]))
return redis.call('HSET', KEYS[1], ARGV[1], stamp .. ' ' .. ARGV[2])
