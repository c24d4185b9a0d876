-- Writes records, all or none. Of each kind `record:KIND` has `version;written;expires` of each key,
-- `value:KIND` its value, and `keys:KIND` the keys in their order; `records:expiring` has
-- `KIND:KEY` by when it expires. The value is never made part of another text: see `shared.lua`.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  name of the term that must be held; empty for none
-- ARGV[2]  its number
-- ARGV[3]  number of writes, each of another record; then for each: kind, key, what must be there
--   (`*` anything, `-` nothing, or a version), whether it is removed (1, 0), value, milliseconds to
--   keep it (empty for ever)
-- Reply    0, and the last version that was given out: one for each write, in order | 1, and the
--   index of the write whose expectation does not hold | 2 if the term is not held
local WIDTH = 6
local meta = call('HMGET', meta_key, 'clock_ms', 'record')
local now, version = clock(meta[1]), tonumber(meta[2] or 0)
if ARGV[1] ~= '' then
  local last = call('HGET', prefix .. 'terms', ARGV[1])
  local number, expires = match(last or '', '^(%d+);%d+;(%d+);;')
  if number ~= ARGV[2] or tonumber(expires) <= now then return { 2 } end
end

local count, checked = tonumber(ARGV[3]), {}
call('ZCARD', prefix .. 'records:expiring')
for index = 0, count - 1 do
  local at = 4 + WIDTH * index
  local kind, expected = ARGV[at], ARGV[at + 2]
  if not checked[kind] then
    checked[kind] = true
    -- A key of another type fails here, before anything is written.
    call('ZCARD', prefix .. 'keys:' .. kind)
    call('HLEN', prefix .. 'value:' .. kind)
  end
  local head = call('HGET', prefix .. 'record:' .. kind, ARGV[at + 1])
  local found = head and match(head, '^%d+') or '-'
  if expected ~= '*' and found ~= expected then return { 1, index } end
end

-- The first write is one that Redis refuses when it is out of memory, so that is before all.
call('HSET', meta_key, 'record', version + count)
for index = 0, count - 1 do
  local at = 4 + WIDTH * index
  local kind, key, keep = ARGV[at], ARGV[at + 1], ARGV[at + 5]
  local expires = keep == '' and '' or format('%d', now + keep)
  if ARGV[at + 3] == '0' then
    call('HSET', prefix .. 'record:' .. kind, key,
      format('%d;%d;%s', version + index + 1, now, expires))
    call('HSET', prefix .. 'value:' .. kind, key, ARGV[at + 4])
    call('ZADD', prefix .. 'keys:' .. kind, 0, key)
  else
    call('HDEL', prefix .. 'record:' .. kind, key)
    call('HDEL', prefix .. 'value:' .. kind, key)
    call('ZREM', prefix .. 'keys:' .. kind, key)
    expires = ''
  end
  if expires == '' then
    call('ZREM', prefix .. 'records:expiring', kind .. ':' .. key)
  else
    call('ZADD', prefix .. 'records:expiring', expires, kind .. ':' .. key)
  end
end
return { 0, version + count }
