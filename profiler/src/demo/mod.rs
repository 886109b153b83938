//! A real workload that stalls, in network namespaces; also the rig of the live tests.
