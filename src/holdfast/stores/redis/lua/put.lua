#!lua flags=allow-oom
-- Replaces or removes a document. Also on a full server: a token can be revoked there, a schedule that fills it can be paused, and
-- what a memo stands for has happened.
-- ARGV: now, …      Reply: see document_write.lua
-- include: common
-- include: indexes
-- include: document
-- include: document_write
local other = instead()
if other then return other end
local new = write()
finish()
return {1, '', new, last_number()}
