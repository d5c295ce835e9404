"""What an operator may do: looking and acting, over any store, without printing anything."""
