module sqs_load

go 1.22
