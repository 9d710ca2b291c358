//! A shard: carries requests from arrival to reply.
