//! The three forms of an operation, made of one request.

/// Defines an operation that returns its result, that writes it into the caller's buffer, and that is started:
/// `op / op_into / op_start(arguments) -> result: how to take it out of the outcome = request`. Without `op_into` where the
/// result is not one tensor.
macro_rules! forms {
    (
        $(#[$meta:meta])*
        $op:ident / $into:ident / $start:ident($($arg:ident: $ty:ty),*) -> $result:ty: $take:path = $request:expr
    ) => {
        forms! {
            $(#[$meta])*
            $op / $start($($arg: $ty),*) -> $result: $take = $request
        }

        #[doc = concat!("[`", stringify!($op), "`](ThreadGroup::", stringify!($op), ")")]
        /// into the caller's buffer, of the result's shape and dtype, in any strides.
        ///
        /// # Errors
        /// Those of the operation; [`Error::Mismatch`](comm_core::Error::Mismatch) of `output`, on every rank, if the buffer
        /// of one has another shape. After an error its content is unspecified.
        pub fn $into<'a>(
            &self,
            $($arg: $ty,)*
            out: impl Into<TensorMut<'a>>,
            deadline: impl Into<Deadline>,
        ) -> Result<()> {
            self.into($request, out, deadline)
        }
    };

    (
        $(#[$meta:meta])*
        $op:ident / $start:ident($($arg:ident: $ty:ty),*) -> $result:ty: $take:path = $request:expr
    ) => {
        $(#[$meta])*
        pub fn $op(&self, $($arg: $ty,)* deadline: impl Into<Deadline>) -> Result<$result> {
            self.call($request, Target::Fresh, deadline).and_then($take)
        }

        #[doc = concat!("Starts [`", stringify!($op), "`](ThreadGroup::", stringify!($op), ").")]
        /// A process that may end before it is over, as nobody waits for the work, [closes](ThreadGroup::close) the group.
        ///
        /// # Errors
        /// Those of starting a thread; the others are the work's.
        pub fn $start(&self, $($arg: $ty,)* deadline: impl Into<Deadline>) -> Result<Work<$result>> {
            self.start($request, deadline, $take)
        }
    };
}

pub(super) use forms;
