-- Makes the tokens to come greater than one that another store granted.
--
-- KEYS[1]  prefix of the partition
-- ARGV[1]  number of tokens of this partition that must have been granted
-- Reply    nothing
if tonumber(call('HGET', meta_key, 'token')) < tonumber(ARGV[1]) then
  call('HSET', meta_key, 'token', ARGV[1])
end
