//! What the examples share: a program's ranks as threads of this process, or this process as one rank of several.

/// What a rank comes to; any error ends the program with exit status 1.
pub type Outcome = Result<(), Box<dyn std::error::Error + Send + Sync>>;

/// Runs `rank(rank, size)` for each of `threads` ranks; with the arguments `--rank R --size N`, for rank R alone.
pub fn run(threads: usize, rank: fn(usize, usize) -> Outcome) -> Outcome {
    let args: Vec<String> = std::env::args().skip(1).collect();
    match args.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        [] => std::thread::scope(|s| {
            let ranks: Vec<_> = (0..threads).map(|r| s.spawn(move || rank(r, threads))).collect();
            ranks.into_iter().try_for_each(|r| r.join().unwrap_or_else(|_| Err("a rank panicked".into())))
        }),
        ["--rank", r, "--size", n] => rank(r.parse()?, n.parse()?),
        _ => Err("expected no arguments, or: --rank R --size N".into()),
    }
}
