//! Ranks that all come, and come once.

use super::*;

pub fn cases() -> Vec<Case> {
    vec![
        Case::ranks("rendezvous", "join/-/-/plain", meet),
        Case::ranks("rendezvous", "exchange/-/-/100", exchange),
        Case::ranks("rendezvous", "join/-/-/same-name-50-times", again),
        Case::ranks("rendezvous", "join/-/-/two-at-once-in-opposite-order", opposite),
        Case::ranks("rendezvous", "join/-/-/names", odd_names),
    ]
}

fn meet(ctx: &RankCtx) -> RankResult {
    let team = Team::join(&ctx.name("t"), ctx.rank(), ctx.world(), ctx.deadline())?;
    check_eq!(team.size(), ctx.world());
    for rank in 0..ctx.world() {
        check_eq!(team.shares_process(rank), ctx.shares_process(rank));
        check_eq!(team.process_of(rank), ctx.process_of(rank));
    }
    for _ in 0..100 {
        team.barrier(ctx.deadline())?;
    }
    done()
}

fn exchange(ctx: &RankCtx) -> RankResult {
    let team = Team::join(&ctx.name("t"), ctx.rank(), ctx.world(), ctx.deadline())?;
    for round in 0..100u8 {
        let said = team.exchange(&[ctx.rank() as u8 * 10 + round; 64], ctx.deadline())?;
        for (rank, bytes) in said.iter().enumerate() {
            check_eq!(bytes, &[rank as u8 * 10 + round; 64]);
        }
    }
    done()
}

fn again(ctx: &RankCtx) -> RankResult {
    for round in 0..50 {
        let team = Team::join(&ctx.name("again"), ctx.rank(), ctx.world(), ctx.deadline())?;
        check!(team.operations() == 1, "round {round}: a fresh team");
        team.barrier(ctx.deadline())?;
    }
    done()
}

/// Two threads of every rank join two teams, on odd ranks in the opposite order.
fn opposite(ctx: &RankCtx) -> RankResult {
    for round in 0..10 {
        let mut names = [ctx.name(&format!("x{round}")), ctx.name(&format!("y{round}"))];
        if ctx.rank() % 2 == 1 {
            names.reverse();
        }
        std::thread::scope(|scope| {
            let join = |name: String| {
                scope.spawn(move || -> Result<(), Error> {
                    let team = Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline())?;
                    team.barrier(ctx.deadline())
                })
            };
            let threads = names.map(join);
            threads.into_iter().try_for_each(|t| t.join().unwrap())
        })?;
    }
    done()
}

/// Names of every length and of any characters; what differs in one of them is another name.
fn odd_names(ctx: &RankCtx) -> RankResult {
    let case = ctx.name("");
    let long = |n: usize, end: &str| format!("{case}{}{end}", "n".repeat(n - case.len() - end.len()));
    let mut names: Vec<String> = [60, 90, 100, 105, 106, 107, 108, 109, 200, 1000, 4095, 4096]
        .into_iter()
        .flat_map(|n| [long(n, "a"), long(n, "b")])
        .collect();
    let odd = ["/", "//", "../..", "a/b", "a\0b", "\0", "ü", "日本語", "a\nb", "%2f", "#", " ", "🦀"];
    names.extend(odd.map(|odd| format!("{case}{odd}")));
    let teams = names
        .iter()
        .map(|name| Team::join(name, ctx.rank(), ctx.world(), ctx.deadline()))
        .collect::<Result<Vec<_>, _>>()?;
    for (team, name) in teams.iter().zip(&names) {
        check_eq!(team.name(), name);
        team.barrier(ctx.deadline())?;
    }
    for name in ["".to_string(), "n".repeat(4097)] {
        let error = Team::join(&name, ctx.rank(), ctx.world(), ctx.deadline()).unwrap_err();
        check!(matches!(error, Error::InvalidArgument { .. }), "{error}");
    }
    done()
}
