-- Takes a name, or extends the term of the asker. A term is kept as
-- `number;began;expires;released;holder`, with times in milliseconds and an empty one for none.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  name
-- ARGV[2]  holder
-- ARGV[3]  milliseconds of the term from now
-- ARGV[4]  number of the term to extend; empty to begin one
-- ARGV[5]  ended terms to keep of a name
-- Reply    1 if the asker holds the name, else 0; the last term of the name, nil if there is none
local now = clock(call('HGET', meta_key, 'clock_ms'))
local terms, past = prefix .. 'terms', prefix .. 'terms:past:' .. ARGV[1]
local name, holder, until_ms = ARGV[1], ARGV[2], now + ARGV[3]
local last = call('HGET', terms, name)
local number, began, expires, released, who
if last then number, began, expires, released, who = match(last, '^(%d+);(%d+);(%d+);(%d*);(.*)$') end
local is_held = last and released == '' and tonumber(expires) > now

if is_held and who == holder and (ARGV[4] == '' or ARGV[4] == number) then
  local text = format('%s;%s;%d;;', number, began, math.max(until_ms, tonumber(expires))) .. holder
  call('HSET', terms, name, text)
  return { 1, text }
elseif is_held or ARGV[4] ~= '' then
  return { 0, last }
end
-- A key of another type fails here, before anything is written.
call('LLEN', past)
call('ZCARD', prefix .. 'terms:names')
local text = format('%d;%d;%d;;', (number or 0) + 1, now, until_ms) .. holder
call('HSET', terms, name, text)
if last then
  call('LPUSH', past, last)
  call('LTRIM', past, 0, ARGV[5] - 1)
else
  call('ZADD', prefix .. 'terms:names', 0, name)
end
return { 1, text }
