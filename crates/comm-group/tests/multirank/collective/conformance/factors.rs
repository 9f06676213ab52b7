//! The factors, their levels, and which levels go together.

use std::fmt;
use std::sync::OnceLock;

use comm_core::tensor::DType;
use comm_testkit::pairwise::{self, Level};

use super::operation::{Operation, Subject, subjects};
use crate::call::Way;
use crate::support::{EVERYWHERE, Place};

/// How shards relate to each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Split {
    None,
    /// All the same.
    Even,
    /// By the rule, which does not come out even.
    Rule,
    /// In sizes that are given, none among them; of replicate_to_shard, a sub-split.
    Given,
}

/// The rank that is another than the rest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Root {
    None,
    First,
    Last,
}

/// A dimension that an operation is told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Dim {
    First,
    Last,
}

/// All that it is told.
pub type Dims = &'static [Dim];

const DIMS: [Dims; 7] = [
    &[],
    &[Dim::First],
    &[Dim::Last],
    &[Dim::First, Dim::First],
    &[Dim::First, Dim::Last],
    &[Dim::Last, Dim::First],
    &[Dim::Last, Dim::Last],
];

/// How the elements of an input lie.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum View {
    Dense,
    /// The first dimension fastest.
    Transposed,
    /// With gaps, in one dimension.
    Stepped,
    /// From the last to the first, in one dimension.
    Flipped,
    /// The same for every index of the first dimension.
    Expanded,
    /// From within its storage.
    Offset,
    /// Backwards, with gaps, repeated along the last dimension, from within its storage.
    Mixed,
    /// No dimensions.
    Number,
    /// No elements.
    Empty,
    /// No elements between dimensions that have a size.
    EmptyInside,
}

const VIEWS: [View; 10] = [
    View::Dense,
    View::Transposed,
    View::Stepped,
    View::Flipped,
    View::Expanded,
    View::Offset,
    View::Mixed,
    View::Number,
    View::Empty,
    View::EmptyInside,
];

impl View {
    /// How many dimensions it has.
    pub fn dims(self) -> usize {
        match self {
            View::Number => 0,
            View::Stepped | View::Flipped | View::Empty => 1,
            View::EmptyInside => 3,
            _ => 2,
        }
    }

    pub fn is_empty(self) -> bool {
        matches!(self, View::Empty | View::EmptyInside)
    }

    /// Whether it is all of its storage, in order: what can be combined in place.
    fn is_whole(self) -> bool {
        matches!(self, View::Dense | View::Number) || self.is_empty()
    }
}

/// How large an input is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Size {
    /// It goes in a letter.
    Letter,
    /// It does not.
    Exposed,
    /// What a rank reduces or copies of an input is more than a block of 32 KiB.
    Blocks,
}

/// All ways, in the order in which they are run.
pub const FORMS: [Way; 6] = [Way::Returned, Way::Into, Way::Strided, Way::Started, Way::InPlace, Way::Batch];

/// How many factors there are.
pub const COUNT: usize = 9;

/// One combination.
#[derive(Clone, Copy, PartialEq)]
pub struct Combination {
    pub subject: Subject,
    pub split: Split,
    pub root: Root,
    pub dims: Dims,
    pub view: View,
    pub dtype: DType,
    pub size: Size,
    pub place: Place,
    pub form: Way,
}

/// A level of one of the factors, which are in this order. What is made anew for each of them comes last.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    Subject(Subject),
    Split(Split),
    Root(Root),
    Dims(Dims),
    View(View),
    DType(DType),
    Size(Size),
    Place(Place),
    Form(Way),
}

impl Value {
    /// Whether an input has no elements then.
    pub fn is_empty(self) -> bool {
        matches!(self, Value::View(view) if view.is_empty())
    }
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The names are those of the variants: `EmptyInside` is empty-inside.
        let name = |variant: &dyn fmt::Debug| -> String {
            let text = format!("{variant:?}");
            let dash =
                |(i, c): (usize, char)| (i > 0 && c.is_uppercase()).then_some('-').into_iter().chain([c]);
            text.chars().enumerate().flat_map(dash).flat_map(char::to_lowercase).collect()
        };
        f.write_str(&match self {
            Value::Subject(subject) => subject.to_string(),
            Value::Split(split) => name(split),
            Value::Root(root) => name(root),
            Value::Dims([]) => "none".to_string(),
            Value::Dims(dims) => dims.iter().map(|dim| name(dim)).collect::<Vec<_>>().join(" to "),
            Value::View(view) => name(view),
            Value::DType(dtype) => dtype.to_string(),
            Value::Size(size) => name(size),
            Value::Place(place) => name(place),
            Value::Form(form) => name(form),
        })
    }
}

/// All factors: what they are called, and their levels.
pub fn factors() -> &'static [(&'static str, Vec<Value>); COUNT] {
    static ALL: OnceLock<[(&str, Vec<Value>); COUNT]> = OnceLock::new();
    ALL.get_or_init(|| {
        let sizes = [Size::Letter, Size::Exposed, Size::Blocks];
        [
            ("operation with operator", subjects().into_iter().map(Value::Subject).collect()),
            ("shards", [Split::None, Split::Even, Split::Rule, Split::Given].map(Value::Split).into()),
            ("root", [Root::None, Root::First, Root::Last].map(Value::Root).into()),
            ("dimensions", DIMS.map(Value::Dims).into()),
            ("view", VIEWS.map(Value::View).into()),
            ("dtype", DType::ALL.iter().copied().map(Value::DType).collect()),
            ("size", sizes.map(Value::Size).into()),
            ("place", EVERYWHERE.map(Value::Place).into()),
            ("form", FORMS.map(Value::Form).into()),
        ]
    })
}

/// What all combinations are made from.
pub fn matrix() -> Option<&'static pairwise::Factors<COUNT>> {
    static MATRIX: OnceLock<Option<pairwise::Factors<COUNT>>> = OnceLock::new();
    let value = |(factor, level): Level| factors()[factor].1[level];
    let levels = std::array::from_fn(|factor| factors()[factor].1.len());
    // Without elements nothing else can go wrong.
    let all =
        factors().iter().enumerate().flat_map(|(f, (_, levels))| (0..levels.len()).map(move |l| (f, l)));
    let masks: Vec<Level> = all.filter(|level| value(*level).is_empty()).collect();
    let matrix = || Some(pairwise::Factors::new(levels, |a, b| goes(value(a), value(b)))?.masking(&masks));
    MATRIX.get_or_init(matrix).as_ref()
}

impl Combination {
    pub fn of(row: &[usize; COUNT]) -> Option<Combination> {
        use Value as V;
        let values: [Value; COUNT] = std::array::from_fn(|factor| factors()[factor].1[row[factor]]);
        let [
            V::Subject(subject),
            V::Split(split),
            V::Root(root),
            V::Dims(dims),
            V::View(view),
            V::DType(dtype),
            V::Size(size),
            V::Place(place),
            V::Form(form),
        ] = values
        else {
            return None;
        };
        Some(Combination { subject, split, root, dims, view, dtype, size, place, form })
    }
}

impl fmt::Display for Combination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Combination { subject, split, root, dims, view, dtype, size, place, form } = *self;
        let (shards, root, along) = (Value::Split(split), Value::Root(root), Value::Dims(dims));
        let (view, size, place) = (Value::View(view), Value::Size(size), Value::Place(place));
        write!(f, "{subject}, shards {shards}, root {root}, dimensions {along}: ")?;
        write!(f, "{dtype}, {view}, {size}, {place}, {}", Value::Form(form))
    }
}

/// What [`goes`] says, in words.
pub const LIMITS: [&str; 5] = [
    "all_reduce, reduce and reduce_scatter come with each operator, for the dtypes that it is there for. An operation has a root, \
     dimensions, shards and forms as it takes them: all_reduce alone is called in place and in a batch; barrier and all_gather_into_vec take no buffer for a result; replicate_to_shard and exchange \
     have one form. Given sizes are, for replicate_to_shard, a sub-split. barrier has no elements: of each factor but the form it \
     has the first level.",
    "In one dimension the first is the last, and no dimension is none to be told of. What has no elements in any dimension is not \
     shared unevenly. Without elements, and without dimensions, an input is small.",
    "In place means a dense buffer, on the heap or in the arena.",
    "More than a block comes dense or transposed, on the heap or in the arena, for the last root, and in shards of given sizes: what \
     takes long is not multiplied with everything. Everything else is.",
    "Nobody sends to itself: in a world of one there is no send and no exchange.",
];

/// Whether two levels go together, that of the earlier factor first.
fn goes(a: Value, b: Value) -> bool {
    use Value as V;
    match (a, b) {
        // It moves nothing: all factors but the form stand at their first level.
        (V::Subject(Subject { operation: Operation::Barrier, .. }), other) => match other {
            V::Form(form) => Operation::Barrier.forms().contains(&form),
            other => factors().iter().any(|(_, levels)| levels[0] == other),
        },
        (V::Subject(s), V::Split(split)) => s.operation.splits().contains(&split),
        (V::Subject(s), V::Root(root)) => s.operation.is_rooted() == (root != Root::None),
        (V::Subject(s), V::Dims(dims)) => s.operation.dims() == dims.len(),
        // These take the first dimension, without being told.
        (V::Subject(s), V::View(View::Number)) => {
            !matches!(s.operation, Operation::AllGatherEqual | Operation::Rows)
        }
        (V::Subject(s), V::DType(dtype)) => s.takes(dtype),
        (V::Subject(s), V::Form(form)) => s.operation.forms().contains(&form),
        // Of nothing there is nothing to share unevenly.
        (V::Split(Split::Rule | Split::Given), V::View(view)) => !matches!(view, View::Number | View::Empty),
        (V::Dims(dims), V::View(view)) => {
            view.dims() >= if dims.contains(&Dim::Last) { 2 } else { dims.len().min(1) }
        }
        (V::View(view), V::Size(size)) => match size {
            Size::Letter => true,
            Size::Exposed => view.dims() > 0 && !view.is_empty(),
            Size::Blocks => matches!(view, View::Dense | View::Transposed),
        },
        // What takes long is not multiplied with everything.
        (V::Split(split), V::Size(Size::Blocks)) => matches!(split, Split::None | Split::Given),
        (V::Root(root), V::Size(Size::Blocks)) => root != Root::First,
        (V::Size(Size::Blocks), V::Place(place)) => matches!(place, Place::Heap | Place::Arena),
        // A buffer to combine in place is dense, and its own.
        (V::View(view), V::Form(Way::InPlace)) => view.is_whole(),
        (V::Place(place), V::Form(Way::InPlace)) => matches!(place, Place::Heap | Place::Arena),
        _ => true,
    }
}
