use std::process::ExitCode;

fn main() -> ExitCode {
    ExitCode::from(stallscope::cli::run(std::env::args_os()))
}
