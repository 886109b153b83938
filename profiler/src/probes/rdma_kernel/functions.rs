//! The one table of kernel functions that are watched for RDMA: by which names, what each is to a call, and which arguments are
//! read. Names move between kernels; of several the first that this kernel has is taken.

use profiler_common::rdma_kernel::{Role, SetupOp};

/// An argument: its possible names in the kernel's types, and its place where these do not tell. No name: it is not read.
#[derive(Clone, Copy, Debug)]
pub(super) struct Argument {
    pub(super) names: &'static [&'static str],
    pub(super) place: u8,
}

/// A place that no function has.
pub(super) const UNREAD: Argument = Argument { names: &[], place: u8::MAX };

/// One function.
#[derive(Clone, Copy, Debug)]
pub(super) struct Function {
    /// Its names, the preferred one first.
    pub(super) names: &'static [&'static str],
    /// The module that it belongs to; where that is not loaded, nothing is missing. Some kernels have it built in.
    pub(super) module: &'static str,
    pub(super) role: Role,
    pub(super) op: SetupOp,
    pub(super) arguments: [Argument; 3],
    /// What is not seen without it; empty where only some kernels have it.
    pub(super) figure: &'static str,
    /// The tracepoint that tells the same.
    pub(super) tracepoint: Option<&'static str>,
}

impl Function {
    /// Whether its return is watched too.
    pub(super) fn ends(&self) -> bool {
        !matches!(self.role, Role::ChannelEvent | Role::AsyncEvent | Role::ManagerEvent | Role::Health)
    }
}

const fn argument(names: &'static [&'static str], place: u8) -> Argument {
    Argument { names, place }
}

const fn plain(
    names: &'static [&'static str],
    module: &'static str,
    role: Role,
    op: SetupOp,
    figure: &'static str,
) -> Function {
    Function { names, module, role, op, arguments: [UNREAD; 3], figure, tracepoint: None }
}

const fn with(function: Function, first: Argument) -> Function {
    Function { arguments: [first, UNREAD, UNREAD], ..function }
}

const BYTES: Argument = argument(&["size", "length", "len"], 2);

/// Modules whose types are searched for the functions, the kernel's own last.
pub(super) const MODULES: [&str; 7] =
    ["ib_uverbs", "ib_core", "rdma_cm", "rdma_ucm", "mlx5_core", "mlx5_ib", "rdma_rxe"];

const fn outer(names: &'static [&'static str], module: &'static str) -> Function {
    plain(names, module, Role::Outer, SetupOp::Other, "calls as a whole")
}

const fn operation(
    names: &'static [&'static str],
    module: &'static str,
    op: SetupOp,
    figure: &'static str,
) -> Function {
    plain(names, module, Role::Operation, op, figure)
}

const fn pin(names: &'static [&'static str], figure: &'static str) -> Function {
    with(plain(names, "ib_uverbs", Role::Pin, SetupOp::Other, figure), BYTES)
}

const fn driver(names: &'static [&'static str], module: &'static str) -> Function {
    plain(names, module, Role::Driver, SetupOp::Other, "the driver's part")
}

pub(super) const FUNCTIONS: &[Function] = &[
    outer(&["ib_uverbs_ioctl"], "ib_uverbs"),
    outer(&["ib_uverbs_write"], "ib_uverbs"),
    outer(&["ucma_write"], "rdma_ucm"),
    operation(&["ib_uverbs_reg_mr"], "ib_uverbs", SetupOp::RegisterMemory, "registrations"),
    operation(&["ib_uverbs_handler_UVERBS_METHOD_REG_MR"], "ib_uverbs", SetupOp::RegisterMemory, ""),
    operation(&["ib_uverbs_handler_UVERBS_METHOD_DM_MR_REG"], "ib_uverbs", SetupOp::RegisterMemory, ""),
    operation(
        &["ib_uverbs_handler_UVERBS_METHOD_REG_DMABUF_MR"],
        "ib_uverbs",
        SetupOp::RegisterDmabuf,
        "registrations of dmabufs",
    ),
    operation(&["ib_dereg_mr_user"], "ib_core", SetupOp::Deregister, "deregistrations"),
    operation(&["ib_create_qp_user"], "ib_core", SetupOp::CreateQp, "new queue pairs"),
    operation(&["ib_destroy_qp_user"], "ib_core", SetupOp::DestroyQp, "ends of queue pairs"),
    operation(&["ib_uverbs_create_cq"], "ib_uverbs", SetupOp::CreateCq, "new completion queues"),
    operation(&["ib_uverbs_ex_create_cq"], "ib_uverbs", SetupOp::CreateCq, ""),
    operation(&["ib_uverbs_handler_UVERBS_METHOD_CQ_CREATE"], "ib_uverbs", SetupOp::CreateCq, ""),
    Function {
        arguments: [
            argument(&["ib_qp", "qp"], 0),
            argument(&["attr"], 1),
            argument(&["attr_mask", "qp_attr_mask"], 2),
        ],
        ..operation(&["ib_modify_qp_with_udata"], "ib_core", SetupOp::Modify, "states of queue pairs")
    },
    pin(&["ib_umem_get", "ib_umem_get_peer", "__ib_umem_get_va", "ib_umem_get_va"], "pinning"),
    pin(&["ib_umem_odp_get"], ""),
    pin(&["ib_umem_dmabuf_get_pinned_with_dma_device", "ib_umem_dmabuf_get_pinned"], "pinning of dmabufs"),
    with(driver(&["mlx5_ib_reg_user_mr"], "mlx5_ib"), argument(&["length"], 2)),
    with(driver(&["mlx5_ib_reg_user_mr_dmabuf"], "mlx5_ib"), argument(&["length"], 2)),
    driver(&["mlx5_ib_dereg_mr"], "mlx5_ib"),
    driver(&["mlx5_ib_create_qp"], "mlx5_ib"),
    driver(&["mlx5_ib_modify_qp"], "mlx5_ib"),
    driver(&["mlx5_ib_destroy_qp"], "mlx5_ib"),
    driver(&["mlx5_ib_create_cq"], "mlx5_ib"),
    with(driver(&["rxe_reg_user_mr"], "rdma_rxe"), argument(&["length"], 2)),
    driver(&["rxe_dereg_mr"], "rdma_rxe"),
    driver(&["rxe_create_qp"], "rdma_rxe"),
    driver(&["rxe_modify_qp"], "rdma_rxe"),
    with(
        plain(
            // The last has more arguments than some kernels let `fentry` have.
            &["mlx5_cmd_do", "mlx5_cmd_exec", "cmd_exec"],
            "mlx5_core",
            Role::Command,
            SetupOp::Other,
            "commands to the device",
        ),
        argument(&["in"], 1),
    ),
    plain(
        &["mlx5r_umr_post_send_wait", "mlx5_ib_post_send_wait"],
        "mlx5_ib",
        Role::Command,
        SetupOp::Other,
        "registration by the device's own queue (UMR)",
    ),
    with(
        plain(
            &["cmd_work_handler"],
            "mlx5_core",
            Role::CommandWork,
            SetupOp::Other,
            "how long commands are queued",
        ),
        argument(&["work"], 0),
    ),
    with(
        plain(
            &["ib_uverbs_comp_handler"],
            "ib_uverbs",
            Role::ChannelEvent,
            SetupOp::Other,
            "completion channels",
        ),
        argument(&["cq_context"], 1),
    ),
    with(
        plain(
            &["ib_uverbs_comp_event_read"],
            "ib_uverbs",
            Role::ChannelRead,
            SetupOp::Other,
            "wake-ups by completion channels",
        ),
        argument(&["filp", "file"], 0),
    ),
    Function {
        arguments: [argument(&["element"], 1), argument(&["event"], 2), UNREAD],
        ..plain(
            &["ib_uverbs_async_handler"],
            "ib_uverbs",
            Role::AsyncEvent,
            SetupOp::Other,
            "events of devices and ports",
        )
    },
    plain(&["mlx5_eq_comp_int"], "mlx5_core", Role::Interrupt, SetupOp::Other, "completion interrupts"),
    plain(&["mlx5_trigger_health_work"], "mlx5_core", Role::Health, SetupOp::Other, "health of devices"),
    with(
        operation(&["rdma_resolve_addr"], "rdma_cm", SetupOp::ResolveAddress, "address resolution"),
        argument(&["id"], 0),
    ),
    with(
        operation(&["rdma_resolve_route"], "rdma_cm", SetupOp::ResolveRoute, "route resolution"),
        argument(&["id"], 0),
    ),
    with(operation(&["rdma_connect"], "rdma_cm", SetupOp::Connect, "connecting"), argument(&["id"], 0)),
    operation(&["rdma_accept"], "rdma_cm", SetupOp::Accept, "accepting"),
    Function {
        arguments: [argument(&["cm_id"], 0), argument(&["event"], 1), UNREAD],
        tracepoint: Some("cm_event_handler"),
        ..plain(
            &["ucma_event_handler"],
            "rdma_ucm",
            Role::ManagerEvent,
            SetupOp::Other,
            "answers of the connection manager",
        )
    },
];

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn no_function_stands_twice_and_each_can_be_found() {
        let mut seen = HashSet::new();
        for function in FUNCTIONS {
            assert!(MODULES.contains(&function.module), "{function:?}");
            assert!(!function.names.is_empty());
            for name in function.names {
                assert!(seen.insert(name), "{name}");
            }
        }
    }

    #[test]
    fn arguments_that_are_read_have_a_place() {
        for function in FUNCTIONS {
            for argument in function.arguments {
                assert_eq!(argument.names.is_empty(), argument.place == u8::MAX, "{function:?}");
                assert!(argument.names.is_empty() || argument.place < 6, "{function:?}");
            }
        }
    }
}
