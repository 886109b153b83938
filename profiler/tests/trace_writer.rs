//! What the writer does with little room, large records and many waits.

#[path = "trace_support/synthetic.rs"]
mod synthetic;

use std::cell::RefCell;
use std::io::{self, Cursor, Write};
use std::rc::Rc;

use stallscope::analysis::report::TraceState;
use stallscope::trace::format::BLOCK_MAX;
use stallscope::trace::record::{Clock, End, Environment, Loss, Record};
use stallscope::trace::writer::{LOSS_WRITE, Sink};
use stallscope::trace::{TraceError, TraceReader, TraceWriter};

fn clock(at: u64) -> Record {
    Record::Clock(Clock { monotonic_ns: at, unix_ns: at })
}

fn end() -> End {
    End { time_ns: 9, reason: "duration".to_owned() }
}

/// A disk with room for `capacity` bytes.
#[derive(Clone, Default)]
struct Disk {
    data: Rc<RefCell<Vec<u8>>>,
    capacity: Rc<RefCell<usize>>,
    can_cut: bool,
}

impl Write for Disk {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let mut data = self.data.borrow_mut();
        let room = self.capacity.borrow().saturating_sub(data.len());
        if room == 0 && !bytes.is_empty() {
            return Err(io::Error::from_raw_os_error(libc::ENOSPC));
        }
        let len = room.min(bytes.len());
        data.extend_from_slice(&bytes[..len]);
        Ok(len)
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

impl Sink for Disk {
    fn cut_back(&mut self, len: u64) -> io::Result<()> {
        if !self.can_cut {
            return Err(io::Error::from_raw_os_error(libc::EINVAL));
        }
        self.data.borrow_mut().truncate(len as usize);
        Ok(())
    }

    fn settle(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn read(disk: &Disk) -> (Vec<Record>, TraceState) {
    let data = disk.data.borrow().clone();
    let mut reader = TraceReader::new(Cursor::new(data), "disk").unwrap();
    let records = reader.by_ref().collect();
    (records, reader.state())
}

#[test]
fn a_full_disk_leaves_the_blocks_before_and_says_what_is_lost() {
    for can_cut in [true, false] {
        let disk = Disk { can_cut, ..Disk::default() };
        *disk.capacity.borrow_mut() = 100;
        let mut writer = TraceWriter::new(disk.clone(), "disk").unwrap();
        writer.write(clock(1)).unwrap();
        writer.flush().unwrap();
        let good = writer.bytes_written();
        writer
            .write(Record::Environment(Environment { what: "x".repeat(500), value: String::new(), pid: 0 }))
            .unwrap();
        writer.write(clock(2)).unwrap();
        let error = writer.flush().unwrap_err();
        assert!(
            matches!(&error, TraceError::Write { bytes_written, source, .. }
            if *bytes_written >= good && source.raw_os_error() == Some(libc::ENOSPC)),
            "{error}"
        );
        assert!(error.help().unwrap().contains("free some space"));
        let (records, state) = read(&disk);
        assert_eq!(records[0], clock(1));
        assert!(!state.complete);

        *disk.capacity.borrow_mut() = 10_000;
        let lost = writer.records_lost();
        assert!(lost >= 1);
        writer.finish(end()).unwrap();
        let (records, state) = read(&disk);
        assert!(records.contains(&Record::Loss(Loss {
            what: LOSS_WRITE.to_owned(),
            count: lost,
            events: true
        })));
        assert_eq!(records.last(), Some(&Record::End(end())));
        assert!(!state.complete);
        assert!(state.damage.iter().any(|line| line.contains("could not be written")), "{state:?}");
        assert_eq!(
            state.bytes_unread == 0,
            can_cut,
            "a piece that could not be cut off is skipped: {state:?}"
        );
    }
}

#[test]
fn a_trace_that_cannot_say_what_it_lacks_has_no_end() {
    let disk = Disk { can_cut: true, ..Disk::default() };
    *disk.capacity.borrow_mut() = 40;
    let mut writer = TraceWriter::new(disk.clone(), "disk").unwrap();
    writer.write(clock(1)).unwrap();
    writer.flush().unwrap_err();
    // Room for an end, and not for a loss with its longer name.
    *disk.capacity.borrow_mut() = 20 + 28 + 14;
    assert!(matches!(writer.finish(end()), Err(TraceError::Write { .. })));
    let (records, state) = read(&disk);
    assert_eq!(records, []);
    assert!(!state.complete);

    *disk.capacity.borrow_mut() = 20 + 28 + 14;
    disk.data.borrow_mut().clear();
    TraceWriter::new(disk.clone(), "disk").unwrap().finish(end()).unwrap();
    assert!(read(&disk).1.complete, "an end alone has room");
}

#[test]
fn a_record_that_is_too_large_is_refused_and_the_trace_goes_on() {
    let disk = Disk { can_cut: true, ..Disk::default() };
    *disk.capacity.borrow_mut() = 100 << 20;
    let mut writer = TraceWriter::new(disk.clone(), "disk").unwrap();
    let environment =
        |len| Record::Environment(Environment { what: String::new(), value: "v".repeat(len), pid: 0 });
    writer.write(environment(2 << 20)).unwrap();
    assert!(matches!(writer.write(environment(BLOCK_MAX)), Err(TraceError::RecordTooLarge { .. })));
    let mut wait = synthetic::waits(1).remove(0);
    wait.sockets = vec![wait.sockets[0].clone(); 300_000];
    assert!(matches!(writer.write(Record::Wait(wait)), Err(TraceError::RecordTooLarge { .. })));
    writer.write(environment(3)).unwrap();
    writer.finish(end()).unwrap();
    let (records, state) = read(&disk);
    assert_eq!(records, [environment(2 << 20), environment(3), Record::End(end())]);
    assert!(state.complete, "{state:?}");
}

#[test]
fn an_ordinary_span_takes_at_most_sixteen_bytes() {
    let disk = Disk { can_cut: true, ..Disk::default() };
    *disk.capacity.borrow_mut() = 100 << 20;
    let mut writer = TraceWriter::new(disk.clone(), "disk").unwrap();
    let waits = synthetic::waits(100_000);
    for (at, wait) in waits.iter().enumerate() {
        writer.write(Record::Wait(wait.clone())).unwrap();
        if at % 20_000 == 0 {
            writer.flush().unwrap();
        }
    }
    writer.flush().unwrap();
    let bytes = writer.bytes_written();
    println!("{:.2} bytes a span", bytes as f64 / 100_000.0);
    assert!(bytes <= 16 * 100_000, "{bytes} bytes");
    let (records, _) = read(&disk);
    assert!(records.iter().zip(&waits).all(|(record, wait)| *record == Record::Wait(wait.clone())));
    assert_eq!(records.len(), waits.len());
}
