"""A rank that fails, hangs or leaves ends all, by name.

supervise               its failure becomes everybody's, and theirs its own
failure                 the one message that matters
watch, beats            where a rank is
judging                 whose failure an error is
blame                   who is to blame where a rank waits in vain
store_end               who serves the store lets the others know of its end
guard, pulse, leaving   the store, and ranks, that are gone
whereabouts             where the thread that uses autopar is
standing                whether a session can be called
connecting              what ranks that are watched over tell one another
telling                 what processes say that end
"""
