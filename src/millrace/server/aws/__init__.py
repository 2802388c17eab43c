"""The parts that all AWS front ends share: authentication, protocols, errors, names and caches."""
