use std::process::ExitCode;

#[global_allocator]
static ALLOCATOR: stallscope::out_of_memory::Allocator = stallscope::out_of_memory::Allocator;

fn main() -> ExitCode {
    ExitCode::from(stallscope::cli::run(std::env::args_os()))
}
