//! Slurm's lists of hosts: `node[01-04,7],login`, `rack[0-1]n[0-9]`.

/// Most groups of brackets in one name.
const GROUPS_MAX: usize = 4;

/// All hosts of a list, in order; at most `limit`.
pub(super) fn expand(list: &str, limit: usize) -> Result<Vec<String>, String> {
    let mut hosts = Vec::new();
    for item in split(list)? {
        expand_one(item, limit, &mut hosts)?;
    }
    Ok(hosts)
}

/// At the commas outside of brackets.
fn split(list: &str) -> Result<Vec<&str>, String> {
    let mut items = Vec::new();
    let (mut start, mut inside) = (0, false);
    for (at, char) in list.char_indices() {
        match (char, inside) {
            ('[', true) | (']', false) => return Err(format!("brackets of `{}` do not match", cut(list))),
            ('[', false) => inside = true,
            (']', true) => inside = false,
            (',', false) => {
                items.push(list.get(start..at).unwrap_or(""));
                start = at + 1;
            }
            _ => {}
        }
    }
    if inside {
        return Err(format!("brackets of `{}` do not match", cut(list)));
    }
    items.push(list.get(start..).unwrap_or(""));
    items.retain(|item| !item.is_empty());
    Ok(items)
}

fn expand_one(item: &str, limit: usize, hosts: &mut Vec<String>) -> Result<(), String> {
    let mut names = vec![String::new()];
    let mut rest = item;
    let mut groups = 0;
    while let Some((before, behind)) = rest.split_once('[') {
        let (inside, after) = behind.split_once(']').unwrap_or((behind, ""));
        groups += 1;
        if groups > GROUPS_MAX {
            return Err(format!("`{}` has more than {GROUPS_MAX} groups", cut(item)));
        }
        let numbers = numbers(inside, limit)?;
        if names.len().saturating_mul(numbers.len()) > limit.saturating_sub(hosts.len()) {
            return Err(format!("`{}` is more than {limit} hosts", cut(item)));
        }
        names = names
            .iter()
            .flat_map(|name| numbers.iter().map(move |number| format!("{name}{before}{number}")))
            .collect();
        rest = after;
    }
    for name in &mut names {
        name.push_str(rest);
    }
    if hosts.len() + names.len() > limit {
        return Err(format!("it is more than {limit} hosts"));
    }
    hosts.append(&mut names);
    Ok(())
}

/// `01-04,7`: as many digits as the lower end has.
fn numbers(group: &str, limit: usize) -> Result<Vec<String>, String> {
    let mut all = Vec::new();
    for part in group.split(',') {
        let wrong = || format!("`[{}]` is no list of numbers such as [01-04,7]", cut(group));
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        let width = low.len();
        let digits = |text: &str| !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_digit());
        if !digits(low) || !digits(high) || width > 18 {
            return Err(wrong());
        }
        let (low, high): (u64, u64) = (low.parse().map_err(|_| wrong())?, high.parse().map_err(|_| wrong())?);
        if high < low {
            return Err(wrong());
        }
        if high - low >= (limit.saturating_sub(all.len())) as u64 {
            return Err(format!("`[{}]` is more than {limit} hosts", cut(group)));
        }
        all.extend((low..=high).map(|number| format!("{number:0width$}")));
    }
    Ok(all)
}

/// The beginning of a text, for a message.
fn cut(text: &str) -> String {
    text.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn hosts(list: &str) -> Vec<String> {
        expand(list, 100).unwrap()
    }

    #[test]
    fn lists_and_ranges_are_written_out_with_their_zeros() {
        assert_eq!(hosts("a,b"), ["a", "b"]);
        assert_eq!(hosts("n[08-11]"), ["n08", "n09", "n10", "n11"]);
        assert_eq!(hosts("n[1,3-4]x,login"), ["n1x", "n3x", "n4x", "login"]);
        assert_eq!(hosts("r[0-1]n[0-1]"), ["r0n0", "r0n1", "r1n0", "r1n1"]);
    }

    #[test]
    fn what_is_no_list_is_an_error() {
        for list in ["n[1", "n1]", "n[[1]]", "n[]", "n[a-b]", "n[4-2]", "n[1-]", "n[-1]", "n[1--2]"] {
            assert!(expand(list, 100).is_err(), "{list}");
        }
    }

    #[test]
    fn short_lists_of_many_hosts_are_refused_before_they_take_memory() {
        for list in [
            "n[0-999999999999999999]",
            "n[1-101]",
            "n[0-9][0-9][0-9][0-9]",
            "[0-1][0-1][0-1][0-1][0-1]",
            "n[1-60],m[1-60]",
        ] {
            assert!(expand(list, 100).is_err(), "{list}");
        }
    }
}
