module guest

go 1.22
