//! The recorder: from probes to the trace file.
