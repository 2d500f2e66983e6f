"""A worker process: it joins, trains, reconfigures, leaves."""
