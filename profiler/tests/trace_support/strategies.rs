//! Records of every kind, made up by proptest, and traces made of them.

use std::net::{IpAddr, SocketAddr};
use std::path::Path;

use proptest::collection::vec;
use proptest::prelude::*;
use stallscope::trace::TraceWriter;
use stallscope::trace::kind::Kind;
use stallscope::trace::place::{DeviceUse, Gid, PciDevice, PciLink, PciRole, RdmaPort, ThreadPlace};
use stallscope::trace::rdma::{PortCounter, QueuePair, RdmaAnchor, RdmaCompletion, RdmaPost, RdmaWindow};
use stallscope::trace::record::{
    ApiCall, CallCount, Clock, Coverage, CpuSamples, Direction, DnsMessage, End, Ends, Environment,
    FamilyState, Frame, Handshake, Host, Life, LifeEvent, Loss, Process, PythonFrame, PythonStack, Record,
    Retransmit, Sched, Socket, SocketSample, Space, Stack, Thread, ThreadTime, TopologyFile, Wait, WaitFlags,
    Window,
};

use profiler_common::{Api, Call};

fn text() -> impl Strategy<Value = String> {
    "\\PC{0,12}"
}

fn call() -> impl Strategy<Value = Call> {
    (0..28_u16).prop_map(Call::from_u16)
}

fn api() -> impl Strategy<Value = Api> {
    (0..15_u16).prop_map(Api::from_u16)
}

fn address() -> impl Strategy<Value = SocketAddr> {
    (any::<IpAddr>(), any::<u16>()).prop_map(|(ip, port)| SocketAddr::new(ip, port))
}

fn ends() -> impl Strategy<Value = Ends> {
    prop_oneof![
        (address(), address()).prop_map(|(local, peer)| Ends::Inet { local, peer }),
        text().prop_map(|path| Ends::Unix { path }),
        any::<u16>().prop_map(|family| Ends::Other { family }),
    ]
}

fn socket() -> impl Strategy<Value = Socket> {
    (any::<u64>(), any::<i32>(), any::<u8>(), any::<u8>(), ends(), any::<u16>(), any::<u16>()).prop_map(
        |(ino, fd, kind, state, ends, events, revents)| Socket {
            ino,
            fd,
            kind,
            state,
            ends,
            events,
            revents,
        },
    )
}

fn flags() -> impl Strategy<Value = WaitFlags> {
    any::<[bool; 7]>().prop_map(|[began_earlier, in_flight, nonblocking, slept, paused, set_cut, timed]| {
        WaitFlags { began_earlier, in_flight, nonblocking, slept, paused, set_cut, timed }
    })
}

/// Small numbers, edges, and anything: what a hostile kernel record could carry too.
fn number() -> impl Strategy<Value = u64> {
    prop_oneof![0..3_u64, 0..1_000_000_000_u64, Just(u64::MAX), any::<u64>()]
}

fn sched() -> impl Strategy<Value = Sched> {
    let times = prop_oneof![Just((0, 0, 0, 0)), (number(), number(), number(), any::<u32>())];
    times.prop_map(|(sleep_ns, wake_ns, runq_ns, owner)| Sched { sleep_ns, wake_ns, runq_ns, owner })
}

fn wait() -> impl Strategy<Value = Wait> {
    let head = (number(), number(), any::<u32>(), any::<u32>(), call(), flags(), any::<i32>());
    let tail = (any::<u16>(), any::<u32>(), any::<i64>(), any::<i32>(), number(), number(), number());
    let rest = (number(), vec(socket(), 0..4), sched());
    (head, tail, api(), rest).prop_map(|(head, tail, api, (api_start_ns, sockets, sched))| {
        let (start_ns, end_ns, pid, tid, call, flags, fd) = head;
        let (set_size, polls, ret, arg, off_cpu_ns, user_stack, kernel_stack) = tail;
        Wait {
            start_ns,
            end_ns,
            pid,
            tid,
            call,
            flags,
            fd,
            set_size,
            polls,
            ret,
            arg,
            off_cpu_ns,
            user_stack,
            kernel_stack,
            api,
            api_start_ns,
            sockets,
            sched,
        }
    })
}

fn dns() -> impl Strategy<Value = DnsMessage> {
    let head = (number(), any::<u32>(), any::<u32>(), any::<bool>(), any::<i64>());
    (head, api(), number(), socket(), vec(any::<u8>(), 0..80)).prop_map(
        |((time_ns, pid, tid, sent, ret), api, api_start_ns, socket, data)| DnsMessage {
            time_ns,
            pid,
            tid,
            direction: if sent { Direction::Send } else { Direction::Receive },
            ret,
            api,
            api_start_ns,
            socket,
            data,
        },
    )
}

fn handshake() -> impl Strategy<Value = Handshake> {
    let head = (number(), number(), any::<u32>(), any::<u32>(), any::<i32>());
    (head, any::<bool>(), any::<bool>(), any::<u32>(), socket()).prop_map(
        |((start_ns, end_ns, pid, tid, error), began_earlier, in_flight, syn_retransmits, socket)| {
            Handshake { start_ns, end_ns, pid, tid, error, began_earlier, in_flight, syn_retransmits, socket }
        },
    )
}

fn sample() -> impl Strategy<Value = SocketSample> {
    (any::<[u64; 6]>(), any::<[u32; 5]>(), any::<bool>(), socket()).prop_map(
        |(longs, shorts, at_start, socket)| {
            let [time_ns, rtt_ns, rtt_var_ns, bytes_acked, bytes_received, last_receive_age_ns] = longs;
            let [pid, total_retransmits, current_retransmits, send_queue, receive_queue] = shorts;
            SocketSample {
                time_ns,
                pid,
                socket,
                rtt_ns,
                rtt_var_ns,
                total_retransmits,
                current_retransmits,
                bytes_acked,
                bytes_received,
                send_queue,
                receive_queue,
                last_receive_age_ns,
                at_start,
            }
        },
    )
}

fn stack() -> impl Strategy<Value = Stack> {
    let frame = (text(), text(), any::<u64>()).prop_map(|(function, module, offset)| Frame {
        function,
        module,
        offset,
    });
    (any::<u64>(), any::<bool>(), vec(frame, 0..6), any::<bool>()).prop_map(
        |(id, user, frames, truncated)| {
            let space = if user { Space::User } else { Space::Kernel };
            Stack { id, space, frames, truncated }
        },
    )
}

fn python_stack() -> impl Strategy<Value = PythonStack> {
    let frame = (text(), text(), any::<u32>(), any::<bool>())
        .prop_map(|(function, file, line, entry)| PythonFrame { function, file, line, entry });
    (any::<[u64; 2]>(), vec(frame, 0..6), any::<bool>())
        .prop_map(|([id, native], frames, truncated)| PythonStack { id, native, frames, truncated })
}

fn life() -> impl Strategy<Value = Life> {
    let events = [LifeEvent::Fork, LifeEvent::Thread, LifeEvent::Exec, LifeEvent::Exit];
    (number(), 0..4_usize, any::<[u32; 3]>(), text()).prop_map(
        move |(time_ns, event, [pid, tid, parent], comm)| Life {
            time_ns,
            event: events[event],
            pid,
            tid,
            parent,
            comm,
        },
    )
}

fn about_the_machine() -> impl Strategy<Value = Record> {
    let states = [FamilyState::On, FamilyState::Off, FamilyState::Partial];
    prop_oneof![
        (text(), text(), any::<u32>(), text(), text()).prop_map(|(name, kernel, cpus, arch, recorder)| {
            Record::Host(Host { name, kernel, cpus, arch, recorder })
        }),
        any::<[u64; 2]>().prop_map(|[monotonic_ns, unix_ns]| Record::Clock(Clock { monotonic_ns, unix_ns })),
        any::<[u64; 3]>().prop_map(|[start_ns, end_ns, min_stall_ns]| Record::Window(Window {
            start_ns,
            end_ns,
            min_stall_ns
        })),
        (text(), text(), any::<u32>()).prop_map(|(what, value, pid)| Record::Environment(Environment {
            what,
            value,
            pid
        })),
        (text(), 0..3_usize, text()).prop_map(move |(family, state, reason)| Record::Coverage(Coverage {
            family,
            state: states[state],
            reason
        })),
        (call(), any::<[u64; 3]>()).prop_map(|(call, [seen, below, below_ns])| Record::CallCount(
            CallCount { call, seen, below, below_ns }
        )),
        (text(), any::<u64>(), any::<bool>()).prop_map(|(what, count, events)| Record::Loss(Loss {
            what,
            count,
            events
        })),
    ]
}

fn about_the_target() -> impl Strategy<Value = Record> {
    prop_oneof![
        (any::<[u32; 3]>(), text(), text(), any::<u64>(), any::<bool>()).prop_map(
            |([pid, ppid, ns_pid], comm, exe, seen_ns, asked_for)| {
                Record::Process(Process { pid, ppid, ns_pid, comm, exe, seen_ns, asked_for })
            }
        ),
        (any::<[u32; 3]>(), text(), any::<u64>()).prop_map(|([pid, tid, ns_tid], name, seen_ns)| {
            Record::Thread(Thread { pid, tid, ns_tid, name, seen_ns })
        }),
        life().prop_map(Record::Life),
        (any::<[u64; 3]>(), any::<[u32; 2]>()).prop_map(
            |([time_ns, running_ns, runnable_ns], [pid, tid])| {
                Record::ThreadTime(ThreadTime { time_ns, pid, tid, running_ns, runnable_ns })
            }
        ),
        (any::<[u64; 6]>(), any::<[u32; 2]>()).prop_map(
            |([time_ns, period_ns, samples, looking, waiting, working], [pid, tid])| {
                Record::CpuSamples(CpuSamples {
                    time_ns,
                    pid,
                    tid,
                    period_ns,
                    samples,
                    looking,
                    waiting,
                    working,
                })
            }
        ),
        stack().prop_map(Record::Stack),
        python_stack().prop_map(Record::PythonStack),
    ]
}

fn rdma() -> impl Strategy<Value = Record> {
    let ids = || (any::<u64>(), any::<[u32; 3]>());
    prop_oneof![
        (ids(), text(), any::<[u32; 3]>(), any::<bool>()).prop_map(
            |((time_ns, [pid, number, port]), device, [qp_type, state, _], extended)| {
                Record::QueuePair(QueuePair { time_ns, pid, number, device, port, qp_type, state, extended })
            }
        ),
        (ids(), any::<[u64; 2]>(), any::<[u32; 3]>(), any::<Option<u16>>()).prop_map(
            |((time_ns, [pid, tid, qp]), [wr_id, bytes], [opcode, flags, index], counter)| {
                Record::RdmaPost(RdmaPost {
                    time_ns,
                    pid,
                    tid,
                    qp,
                    wr_id,
                    opcode,
                    flags,
                    bytes,
                    index,
                    counter,
                })
            }
        ),
        (ids(), any::<u32>(), any::<u16>(), any::<[u8; 3]>()).prop_map(
            |((time_ns, [pid, tid, qp]), bytes, counter, [opcode, syndrome, vendor])| {
                let one = RdmaCompletion { time_ns, pid, tid, qp, bytes, counter, opcode, syndrome, vendor };
                Record::RdmaCompletion(one)
            }
        ),
        ids().prop_map(|(start_ns, [pid, end_ns, _])| {
            Record::RdmaWindow(RdmaWindow { pid, start_ns, end_ns: end_ns.into() })
        }),
        (ids(), text(), text(), any::<u64>()).prop_map(|((time_ns, [port, ..]), device, name, value)| {
            Record::PortCounter(PortCounter { time_ns, device, port, name, value })
        }),
        (ids(), any::<u16>()).prop_map(|((time_ns, [pid, qp, _]), counter)| {
            Record::RdmaAnchor(RdmaAnchor { time_ns, pid, qp, counter })
        }),
    ]
}

fn place() -> impl Strategy<Value = Record> {
    let address = || ("[0-9a-f]{4}:[0-9a-f]{2}", text()).prop_map(|(one, other)| format!("{one}{other}"));
    prop_oneof![
        (address(), text(), any::<[u32; 4]>(), any::<i32>(), any::<Option<u16>>(), any::<Option<u8>>())
            .prop_map(|(address, name, [width, width_max, speed, speed_max], node, acs, port_type)| {
                let link = PciLink { width, width_max, speed, speed_max };
                let (parent, root) = (name.clone(), address.clone());
                let role = [PciRole::Gpu, PciRole::Nic, PciRole::Bridge][(width % 3) as usize];
                Record::PciDevice(PciDevice { address, name, role, parent, root, node, link, port_type, acs })
            }),
        (text(), text(), any::<[u32; 3]>()).prop_map(|(device, gid, [port, mtu, index])| {
            let gids = vec![Gid { index, gid: gid.clone(), kind: device.clone() }];
            let (state, rate, netdev) = (gid.clone(), gid.clone(), gid.clone());
            Record::RdmaPort(RdmaPort { device, port, link_layer: gid, state, rate, netdev, mtu, gids })
        }),
        (any::<u32>(), text()).prop_map(|(pid, device)| Record::DeviceUse(DeviceUse { pid, device })),
        (number(), any::<[u32; 3]>(), any::<i32>()).prop_map(|(time_ns, [pid, tid, cpu], node)| {
            Record::ThreadPlace(ThreadPlace { time_ns, pid, tid, cpu, node })
        }),
    ]
}

/// Any record but the end.
pub fn record() -> impl Strategy<Value = Record> {
    prop_oneof![
        3 => about_the_machine(),
        2 => about_the_target(),
        4 => wait().prop_map(Record::Wait),
        1 => dns().prop_map(Record::Dns),
        1 => (number(), any::<[u32; 2]>(), api(), text(), any::<Option<IpAddr>>()).prop_map(
            |(time_ns, [pid, tid], api, argument, address)| {
                Record::Api(ApiCall { time_ns, pid, tid, api, argument, address })
            }
        ),
        1 => handshake().prop_map(Record::Handshake),
        1 => (number(), any::<u32>(), socket())
            .prop_map(|(time_ns, pid, socket)| Record::Retransmit(Retransmit { time_ns, pid, socket })),
        1 => sample().prop_map(Record::Socket),
        2 => rdma(),
        1 => place(),
        1 => (text(), text()).prop_map(|(path, text)| Record::Topology(TopologyFile { path, text })),
    ]
}

pub fn end() -> End {
    End { time_ns: 77, reason: "duration".to_owned() }
}

/// Writes a trace with a flush behind every `per_flush` records.
pub fn write_trace(path: &Path, records: &[Record], per_flush: usize) {
    let mut writer = TraceWriter::create(path).unwrap();
    for piece in records.chunks(per_flush) {
        for record in piece {
            writer.write(record.clone()).unwrap();
        }
        writer.flush().unwrap();
    }
    writer.finish(end()).unwrap();
}

/// Records in the order in which a flush writes their kinds; the order within a kind stays.
pub fn by_kind(mut records: Vec<Record>) -> Vec<Record> {
    let place = |record: &Record| Kind::ALL.iter().position(|kind| *kind == Kind::of(record));
    records.sort_by_key(place);
    records
}
