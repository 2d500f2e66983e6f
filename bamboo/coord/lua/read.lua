-- The state document with the server's time. KEYS: state.
-- Gives version, state, store id, seconds, microseconds; the first three are nil without a run.
local held = redis.call('HMGET', KEYS[1], 'version', 'state', 'store_id')
local now = redis.call('TIME')
return {held[1], held[2], held[3], now[1], now[2]}
